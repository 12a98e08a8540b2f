"""Test figures with several layers: which rows are drawn, and the text that describes them."""

from pandas import DataFrame

from reproduce.presentation import facets
from reproduce.presentation.facets import Look, Panel
from reproduce.presentation.statistics import Estimate

LOOKS = {"a": Look("the first", "#aa0001"), "b": Look("the second", "#bb0002", None, "^")}
ROWS = [
    {"line": line, "panel": panel, "x": x, "y": x + 0.5, "hue": hue, "kind": "KE"[x % 2]}
    for line in ("upper", "lower")
    for panel, hue in (("left", "a"), ("left", "b"), ("right", "b"))
    for x in range(4)
]


def draw(*layers: facets.Layer) -> None:
    facets.facet(
        DataFrame(ROWS),
        layers,
        key="k",
        caption="c",
        x="x",
        y="y",
        hue="hue",
        looks=LOOKS,
        panels=facets.Panels(row="line", col="panel", titles=lambda _, panel: str(panel), margins=str.upper),
    )


def test_markers_without_line_are_offset_side_by_side() -> None:
    """With `apart`, the markers of the hues are offset, and `zero` draws a line at 0."""
    panels: list[Panel] = []
    draw(facets.dots(apart=0.2, even=True), facets.zero, panels.append)
    first, second, zero = panels[0].axes.lines
    assert [list(line.get_xdata()) for line in (first, second)] == [[-0.1, 0.9, 1.9, 2.9], [0.1, 1.1, 2.1, 3.1]]
    assert list(zero.get_ydata()) == [0, 0]
    assert (LOOKS["a"].linestyle, LOOKS["b"].linestyle) == ("-", "")


def test_places_are_labelled_by_a_column() -> None:
    """Ticks have labels from a column, and shaded places have a patch."""
    panels: list[Panel] = []
    draw(facets.label_places("kind", shaded="K"), panels.append)
    assert [label.get_text() for label in panels[-1].axes.get_xticklabels()] == ["0\nK", "1\nE", "2\nK", "3\nE"]
    assert len(panels[0].axes.patches) == 2


def test_figure_description_summarises_its_data() -> None:
    """The description contains the range of every curve, bar or row, or that nothing is known."""

    def spoken_label(layer: facets.Layer, rows: list[tuple[object, object, str]]) -> str:
        frame = DataFrame(rows, columns=["x", "y", "hue"])
        x, y = facets.Axis("x", "k"), facets.Axis("y", "%")
        return facets.facet(frame, [layer], key="k", caption="t", x=x, y=y, hue="hue", looks=LOOKS).description

    lines = [(0, 0.1, "a"), (0, 0.3, "a"), (1, float("nan"), "a"), (2, 1.0, "a"), (1, 5.0, "b")]
    assert spoken_label(facets.line(), lines) == "1 panel, % against k. the first from 0.2 to 1; the second 5."
    bars = [("S", 2.0, "a"), ("S", 3.0, "b"), ("T", 1.0, "b")]
    assert spoken_label(facets.stack(), bars) == "1 panel, % against k. S 5; T 1."
    assert spoken_label(facets.rows(["S"]), [(1.0, "S", "a"), (2.0, "S", "a")]) == "1 panel, % against k. S 1.5."
    hues = spoken_label(facets.rows(["S"]), [(1.0, "S", "a"), (2.0, "S", "b")])
    assert hues == "1 panel, % against k. S, the first 1; S, the second 2.", "a mean over hues is of none"
    assert spoken_label(facets.line(), [(1.0, float("nan"), "a")]) == "1 panel, % against k. nothing is known yet."


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
    nothing = facets.facet(
        runs[:0],
        [facets.dots()],
        key="k",
        caption=caption,
        x="k",
        y="test_accuracy",
        panels=facets.Panels(row="method"),
    )
    assert nothing.svg == ""


def test_side_panel_shares_the_logarithmic_axis() -> None:
    """A linear axis from 1 to 32 begins below 0: limits taken before the scale squeezed the panel to the right."""
    drawn: list[Panel] = []
    facets.facet(
        [{"k": k, "y": 60.0 + k, "method": "PETRA"} for k in (1, 32)],
        [facets.line(), drawn.append],
        key="k",
        title="t",
        caption="c",
        x=facets.Axis("k", log=True),
        y="y",
        beside=facets.Beside(
            [facets.differences({"gap": {1: Estimate(-1.0, -2.0, 0.0, 3)}}, {"gap": "#123456"}), drawn.append]
        ),
    )
    assert drawn[1].axes.containers[0].lines[0].get_color() == "#123456"
    limits = [panel.axes.get_xlim() for panel in drawn]
    assert limits[0] == limits[1]
    assert 0.5 < limits[1][0] < 1
