"""The drawn schedules: every method at every k."""

from reproduce.exhibits import schedules
from reproduce.exhibits._exhibit import section
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.show.content import Figure


def test_section_draws_every_method_at_every_k() -> None:
    shown = section(schedules.EXHIBIT, Frames(Results((), ())))
    drawn = [block for block in (*shown.blocks, *shown.folded) if isinstance(block, Figure)]
    assert len(drawn) == len(schedules.DRAWN) * len(schedules.ACCUMULATIONS)
    for figure in drawn:
        assert "F1" in figure.description
        assert "of the turns are idle" in figure.caption
