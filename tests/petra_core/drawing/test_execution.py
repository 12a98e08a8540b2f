"""What is drawn as executed was executed, and is what the generator predicts."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.drawing.__main__ import main
from petra_core.drawing.execution import executed
from petra_core.methods import Method
from petra_core.schedule import generate


@pytest.mark.parametrize("method", [methods.PETRA, methods.PAREPROP], ids=str)
def test_what_ran_is_what_was_planned(method: Method) -> None:
    assert executed(method, 4, 7, 2) == generate(method, 4, 7, 2)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 7), (4, 0)])
def test_a_schedule_of_nothing_is_refused(stages: int, micro_batches: int) -> None:
    with pytest.raises(ValueError, match="at least 2 stages and 1 micro-batch"):
        executed(methods.PETRA, stages, micro_batches)


def test_command_draws_what_it_is_asked_for(tmp_path: Path) -> None:
    main([str(tmp_path / "dsp.svg"), "--method", "dsp", "--stages", "3", "-k", "2"])
    assert "J = 3, k = 2" in (tmp_path / "dsp.svg").read_text("utf-8")


@pytest.mark.parametrize("wrong", [["--method", "petr"], ["--stages", "1"], ["--highlight", "9"], ["-k", "0"]])
def test_command_refuses_what_cannot_be_drawn(
    tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "schedule.svg"), *wrong])
    assert "error: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
