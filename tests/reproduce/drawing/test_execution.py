"""Test how executed actions are laid out in time, and the command that draws them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.staleness import Action, Kind, lockstep, one_f_one_b
from reproduce.drawing.__main__ import main
from reproduce.drawing.execution import execute, lay_out
from reproduce.drawing.timeline import ScheduleError


def test_pipelines_are_full_at_sufficient_staleness() -> None:
    """A micro-batch takes F 1 + R 1 + B 2 at each stage, if its device does not wait."""
    for staleness, seconds in ((lockstep(4), 4), (one_f_one_b(4), 4), ((2, 2, 1, 0), 8)):
        timeline = lay_out(execute(methods.PETRA, 4, 40, 1, staleness), (1,) * 4)
        assert timeline.seconds_per_micro_batch(skip=10, drop=10) == pytest.approx(seconds), staleness


def test_overlapped_reconstruction_runs_during_backward() -> None:
    """An overlapped reconstruction runs during the backward of the stage above; a deadlock is refused."""
    actions = execute(methods.PAREPROP, 4, 2)
    timeline = lay_out(actions, (1,) * 4)
    begins = {event.name: event.begin for event in timeline.events}
    ends = {event.name: event.end for event in timeline.events}
    for stage in range(3):
        assert begins["R", stage, 1] < ends["B", stage + 1, 1]
    assert timeline.seconds == 2 * 3 * 4, "3J"
    order = [(0, Action(Kind.BACKWARD, 0)), (0, Action(Kind.FORWARD, 0)), (1, Action(Kind.FORWARD, 0))]
    with pytest.raises(ScheduleError, match="stage 0 executed B0 before F0 of stage 0"):
        lay_out([*order, (1, Action(Kind.BACKWARD, 0))], (1, 1))


@pytest.mark.parametrize(
    ("method", "titles"),
    [("dsp", ["lockstep: staleness 4, 2, 0", "1F1B: staleness 2, 1, 0"]), ("pareprop", ["0, 0, 0"])],
)
def test_draw_command_writes_svg(method: str, titles: list[str], tmp_path: Path) -> None:
    """The command draws an SVG file with the requested schedules."""
    main([str(tmp_path / "schedule.svg"), "--method", method, "--stages", "3", "-k", "2", "--micro-batches", "4"])
    text = (tmp_path / "schedule.svg").read_text("utf-8")
    assert ElementTree.fromstring(text)[0].text.endswith("on 3 stages, k = 2")
    assert [title for title in titles if title not in text] == []
