"""Test that the schedule of every method is drawn at every k."""

from reproduce.exhibits import schedules
from reproduce.presentation.content import Figure
from tests.sections import of_benchmarks


def test_section_draws_every_method_at_every_k() -> None:
    rendered = of_benchmarks(schedules.EXHIBIT)
    drawn = [block for block in (*rendered.blocks, *rendered.folded) if isinstance(block, Figure)]
    assert len(drawn) == len(schedules.DRAWN) * len(schedules.ACCUMULATIONS)
    for figure in drawn:
        assert "F1" in figure.description
        assert "devices are idle for" in figure.caption
