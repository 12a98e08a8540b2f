"""Test figures: which rows each layer draws, the axes of panels, stacked bars, and the text that describes a figure."""

from typing import Any

import pytest
from pandas import DataFrame

from reproduce.presentation import facets
from reproduce.presentation.content import Figure
from reproduce.presentation.facets import Look, Panel, where
from reproduce.presentation.statistics import Estimate
from tests.sections import describe

LOOKS = {"a": Look("the first", "#aa0001"), "b": Look("the second", "#bb0002", None, "^"), "c": Look("c", "#00ff00")}
#: Curves in two lines of two panels.
CURVES = [
    {"line": line, "panel": panel, "x": x, "y": x + 0.5, "hue": hue, "kind": "KE"[x % 2]}
    for line in ("upper", "lower")
    for panel, hue in (("left", "a"), ("left", "b"), ("right", "b"))
    for x in range(4)
]
MARGINS = facets.Panels(row="line", col="panel", titles=lambda _, panel: str(panel), margins=str.upper)
#: Amounts from two sources.
AMOUNTS = [
    {"x": x, "y": y, "hue": hue, "of": source}
    for source, hue, amounts in (("formula", "a", (1.0, 2.0)), ("measured", "b", (3.0, 40.0)))
    for x, y in enumerate(amounts)
]
BY_SOURCE = facets.Panels(col="of", share=(False, False))


def draw(rows: list[dict[str, Any]], *layers: facets.Layer, **options: Any) -> Figure:
    """Draw rows with the columns x, y and hue."""
    axes = {"x": "x", "y": "y", "hue": "hue", "looks": LOOKS} | options
    return facets.facet(rows, layers, key="k", caption="c", **axes)


def test_layer_for_some_rows_skips_panels_without_them() -> None:
    """A layer with `where` gets the matching rows and their looks, and is not called for panels without any."""
    seen: list[tuple[list[float], list[str]]] = []

    def look(panel: Panel) -> None:
        seen.append((list(panel.part["y"]), list(panel.looks)))

    draw(AMOUNTS, where(look, of="measured"), where(look, of="measured", x=1), where(look, of="neither"))
    assert seen == [([3.0, 40.0], ["b"]), ([40.0], ["b"])], "what stands side by side has the middle at its place"
    seen.clear()
    draw(AMOUNTS, where(look, of="formula"), panels=BY_SOURCE)
    assert seen == [([1.0, 2.0], ["a"])]


def test_layer_draws_another_column_where_present() -> None:
    """`with_column` draws another column where rows have a value, and the description covers y only."""
    seen: list[tuple[str, list[float]]] = []
    rows = [{**AMOUNTS[0], "formula": 5.0}, AMOUNTS[1], {"x": 2, "hue": "a", "formula": 6.0}]
    other = facets.with_column("formula", lambda panel: seen.append((panel.y, list(panel.part[panel.y]))))
    figure = draw(rows, other, facets.dots())
    assert seen == [("formula", [5.0, 6.0])]
    assert describe(figure) == "1 panel. the first from 1 to 2.", "where what y is"


def test_panels_may_have_separate_axis_scales() -> None:
    """One panel may be logarithmic while another one begins at 0."""
    panels: list[Panel] = []
    scales = where(facets.from_zero, of="formula"), where(facets.logarithmic, of="measured")
    draw(AMOUNTS, facets.dots(), facets.dots(hollow="of"), *scales, panels.append, panels=BY_SOURCE)
    assert [panel.axes.get_yscale() for panel in panels] == ["linear", "log"]
    bottom, top = panels[0].axes.get_ylim()
    assert (bottom, top) == (0, pytest.approx(2.1, abs=0.2))
    filled, hollow = panels[0].axes.lines
    assert filled.get_markerfacecolor() == LOOKS["a"].colour
    assert hollow.get_markerfacecolor() == "none"


def test_markers_without_line_are_offset_side_by_side() -> None:
    """With `apart`, the markers of the hues are offset, and `zero` draws a line at 0."""
    panels: list[Panel] = []
    draw(CURVES, facets.dots(apart=0.2, even=True), facets.zero, panels.append, panels=MARGINS)
    first, second, zero = panels[0].axes.lines
    assert [list(line.get_xdata()) for line in (first, second)] == [[-0.1, 0.9, 1.9, 2.9], [0.1, 1.1, 2.1, 3.1]]
    assert list(zero.get_ydata()) == [0, 0]
    assert (LOOKS["a"].linestyle, LOOKS["b"].linestyle) == ("-", "")


def test_places_are_labelled_by_a_column() -> None:
    """Ticks have labels from a column, and shaded places have a patch."""
    panels: list[Panel] = []
    draw(CURVES, facets.label_places("kind", shaded="K"), panels.append, panels=MARGINS)
    assert [label.get_text() for label in panels[-1].axes.get_xticklabels()] == ["0\nK", "1\nE", "2\nK", "3\nE"]
    assert len(panels[0].axes.patches) == 2


@pytest.mark.parametrize(
    ("layer", "rows", "description"),
    [
        (
            facets.line(),
            [(0, 0.1, "a"), (0, 0.3, "a"), (1, float("nan"), "a"), (2, 1.0, "a"), (1, 5.0, "b")],
            "the first from 0.2 to 1; the second 5",
        ),
        (facets.stack(), [("S", 2.0, "a"), ("S", 3.0, "b"), ("T", 1.0, "b")], "S 5; T 1"),
        (facets.rows(["S"]), [(1.0, "S", "a"), (2.0, "S", "a")], "S 1.5"),
        # A mean over hues is of none.
        (facets.rows(["S"]), [(1.0, "S", "a"), (2.0, "S", "b")], "S, the first 1; S, the second 2"),
        (facets.line(), [(1.0, float("nan"), "a")], "nothing is known yet"),
    ],
)
def test_figure_description_summarises_its_data(layer: facets.Layer, rows: list[Any], description: str) -> None:
    """The description contains the range of every curve, bar or row, or that nothing is known."""
    made = [dict(zip(("x", "y", "hue"), row, strict=True)) for row in rows]
    figure = draw(made, layer, x=facets.Axis("x", "k"), y=facets.Axis("y", "%"))
    assert describe(figure) == f"1 panel, % against k. {description}."


def test_known_columns_have_default_labels() -> None:
    """Known columns have default labels, ticks and scales, and the caption gives the title."""
    drawn: list[Panel] = []
    runs = DataFrame({"k": [1, 4], "test_accuracy": [60.0, 61.0], "method": ["PETRA", "BACKPROPAGATION"]})
    caption = "Accuracy by k (scale “small”). Dot: a seed."
    figure = facets.facet(runs, [facets.dots(), drawn.append], key="k", caption=caption, x="k", y="test_accuracy")
    axes = drawn[0].axes
    assert (figure.title, axes.get_xlabel(), axes.get_ylabel()) == ("Accuracy by k", "k", "test accuracy, %")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
    assert axes.get_xscale() == "log"
    facets.facet(runs, [facets.rows(), drawn.append], key="k", caption=caption, x="test_accuracy", y="method")
    assert [label.get_text() for label in drawn[1].axes.get_yticklabels()] == ["Backpropagation", "PETRA"]
    assert draw([], facets.dots(), panels=facets.Panels(row="method")).svg == ""


def test_side_panel_shares_the_logarithmic_axis() -> None:
    """A linear axis from 1 to 32 begins below 0: limits taken before the scale squeezed the panel to the right."""
    drawn: list[Panel] = []
    gap = facets.differences({"gap": {1: Estimate(-1.0, -2.0, 0.0, (3,))}}, {"gap": "#123456"})
    rows = [{"x": x, "y": 60.0 + x, "hue": "a"} for x in (1, 32)]
    beside = facets.Beside([gap, drawn.append])
    draw(rows, facets.line(), drawn.append, x=facets.Axis("x", log=True), beside=beside)
    assert drawn[1].axes.containers[0].lines[0].get_color() == "#123456"
    limits = [panel.axes.get_xlim() for panel in drawn]
    assert limits[0] == limits[1]
    assert 0.5 < limits[1][0] < 1


@pytest.mark.parametrize("sideways", [True, False])
def test_stack_orders_bars_by_rows_and_parts_by_looks(sideways: bool) -> None:
    """Bars are in the order of the rows, their parts in that of the looks, with means and sums."""
    panels: list[Panel] = []
    bars = [("late", "b", 2.0), ("late", "a", 1.0), ("early", "b", 4.0), ("late", "b", 3.0)]
    rows = [{"x": x, "hue": hue, "y": y} for x, hue, y in bars]
    draw(rows, facets.stack(sideways=sideways, mean=True, sums=".0f"), panels.append)
    axes = panels[0].axes
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
