"""The drawn schedules: every method at every k."""

from petra_core import methods
from reproduce.exhibits import schedules
from reproduce.show.content import Figure


def test_section_draws_every_method_at_every_k() -> None:
    section = schedules.section()
    drawn = [block for block in (*section.blocks, *section.folded) if isinstance(block, Figure)]
    assert len(drawn) == len(methods.KNOWN) * len(schedules.ACCUMULATIONS)
    for figure in drawn:
        assert "F1" in figure.description
        assert "of the turns are idle" in figure.caption
