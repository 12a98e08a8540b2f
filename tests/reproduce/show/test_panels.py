"""Layers of figures that several curves and marks share: what is drawn of which rows, and said of it."""

import re

from pandas import DataFrame

from reproduce.show import facets
from reproduce.show.facets import Look

LOOKS = {"a": Look("the first", "#aa0001"), "b": Look("the second", "#bb0002", None, "^")}
ROWS = [
    {"line": line, "panel": panel, "x": x, "y": x + 0.5, "hue": hue, "kind": "KE"[x % 2]}
    for line in ("upper", "lower")
    for panel, hue in (("left", "a"), ("left", "b"), ("right", "b"))
    for x in range(4)
]


def draw(*layers: facets.Layer) -> str:
    settings = {"key": "k", "title": "t", "caption": "c", "description": "d", "x": "x", "y": "y", "hue": "hue"}
    figure = facets.facet(
        DataFrame(ROWS),
        layers,
        looks=LOOKS,
        row="line",
        col="panel",
        titles=lambda _, panel: str(panel),
        margins=str.upper,
        xlabel="stages",
        **settings,
    )
    return figure.svg


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>|<tspan[^>]*>([^<]*)</tspan>", svg)


def test_lines_of_panels_are_named_at_their_left_and_panels_in_the_first_line() -> None:
    svg = draw(facets.dots())
    amounts = {name: len(re.findall(f">{name}<", svg)) for name in ("UPPER", "LOWER", "left", "right", "stages")}
    assert amounts == {"UPPER": 1, "LOWER": 1, "left": 1, "right": 1, "stages": 2}


def test_layers_of_some_hues_leave_the_others_and_panels_without_them_alone() -> None:
    everything, nothing = draw(facets.dots()), draw(facets.only(["c"], facets.dots(), facets.zero))
    only = draw(facets.only(["a"], facets.line()))
    assert everything.count("#bb0002") > only.count("#bb0002") == nothing.count("#bb0002")  # those of the legend
    assert only.count("#aa0001") == nothing.count("#aa0001") + 2  # a line in each left panel
    assert draw(facets.zero).count("#5f5f5f") == nothing.count("#5f5f5f") + 4


def test_places_are_labelled_by_a_column() -> None:
    assert (
        len(re.findall(r">K<", draw(facets.labelled("kind", shaded="K")))) == 2 * 2
    )  # two places in the panels of the last line


def test_ends_of_lines_in_words() -> None:
    rows = DataFrame(
        [
            {"x": x, "y": y, "hue": hue}
            for x, y, hue in ((0, 0.1, "a"), (0, 0.3, "a"), (1, float("nan"), "a"), (2, 1.0, "a"), (1, 5.0, "b"))
        ]
    )
    assert facets.ends(rows, LOOKS, x="x", y="y", hue="hue") == "the first from 0.20 to 1.00; the second 5.00"
    assert facets.ends(rows, {"c": Look("neither", "red")}, x="x", y="y", hue="hue") == "neither not defined"
