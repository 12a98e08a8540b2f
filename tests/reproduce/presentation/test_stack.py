"""Test stacked bars: nothing is lost or duplicated."""

import matplotlib as mpl
import pytest
from pandas import DataFrame

from reproduce.presentation import facets
from reproduce.presentation.facets import Look, Panel

LOOKS = {"a": Look("a", "#000000"), "b": Look("b", "#ff0000"), "c": Look("c", "#00ff00")}
ROWS = [("late", "b", 2.0), ("late", "a", 1.0), ("early", "b", 4.0), ("late", "b", 3.0)]


@pytest.mark.parametrize("sideways", [True, False])
def test_stack_orders_bars_by_rows_and_parts_by_looks(sideways: bool) -> None:
    """Bars are in the order of the rows, their parts in that of the looks, with means and sums."""
    axes = mpl.figure.Figure().subplots()
    frame = DataFrame(ROWS, columns=["x", "hue", "y"])
    panel = Panel(axes, frame, "x", "y", "hue", LOOKS, frame, frame)
    facets.stack(sideways=sideways, mean=True, sums=".0f")(panel)
    ends = [
        (bar.get_x(), bar.get_x() + bar.get_width()) if sideways else (bar.get_y(), bar.get_y() + bar.get_height())
        for bar in axes.patches
    ]
    assert ends == [(0, 1), (0, 0), (1, 6), (0, 4)], "a of late and early, then b of late and early"
    labels = axes.get_yticklabels() if sideways else axes.get_xticklabels()
    assert [label.get_text() for label in labels] == ["late", "early"]
    (line,) = axes.lines
    assert set(line.get_xdata() if sideways else line.get_ydata()) == {5.0}
    assert [text.get_text().strip() for text in axes.texts] == ["6", "4"]
