"""Test which of an exhibit's sentences becomes its summary."""

from pathlib import Path

from petra_core import methods
from reproduce.exhibits import length, table2
from reproduce.grids import recipes
from tests import fake_records, sections

PETRA, EXACT = methods.PETRA, methods.BACKPROPAGATION


def test_unfinished_scale_does_not_replace_the_summary(tmp_path: Path) -> None:
    """A larger scale that has only begun does not replace the summary of a finished one."""
    for method in (PETRA, EXACT):
        fake_records.train(recipes.cell("small", "revnet18", method, 1), tmp_path, 60.0)
    fake_records.train(recipes.cell("paper", "revnet18", PETRA, 1), tmp_path, 60.0, epochs=1)
    known = "PETRA − backpropagation at k = 1 is 0.0 (one run each) after 3 epochs, in points (scale “small”)."
    assert sections.made(length.EXHIBIT, tmp_path).sentence == known
    assert "(scale “small”)" in sections.made(table2.EXHIBIT, tmp_path).sentence
