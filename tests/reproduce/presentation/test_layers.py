"""Test layers for some rows of a panel, layers that set its axis, and stacked bars."""

import pytest

from reproduce.presentation import facets
from reproduce.presentation.facets import Layer, Panel, facet, where

ROWS = [
    {"at": at, "amount": amount, "kind": kind, "of": source}
    for source, kind, amounts in (("formula", "inputs", (1.0, 2.0)), ("measured", "graph", (3.0, 40.0)))
    for at, amount in enumerate(amounts)
]


def drawn(*layers: Layer, col: str | None = None) -> None:
    facet(
        ROWS,
        layers,
        key="k",
        title="Title",
        caption="",
        x="at",
        y="amount",
        hue="kind",
        looks=facets.KIND_LOOKS,
        panels=facets.Panels(col=col, share=(False, False)),
        legend="area",
    )


def test_only_applies_to_matching_rows_and_panels() -> None:
    """A layer with `only` gets the matching rows, and is not called for panels without any."""
    seen: list[list[float]] = []
    looks: list[list[str]] = []

    def look(panel: Panel) -> None:
        seen.append(list(panel.part["amount"]))
        looks.append(list(panel.looks))

    drawn(where(look, of="measured"), where(look, of="measured", at=1), where(look, of="neither"))
    assert seen == [[3.0, 40.0], [40.0]]
    assert looks == [["graph"]] * 2, "what stands side by side has the middle at its place"
    seen.clear()
    drawn(where(look, of="formula"), col="of")
    assert seen == [[1.0, 2.0]]


def test_also_draws_another_column_where_present() -> None:
    """`also` draws another column where rows have a value, and the description covers y only."""
    seen: list[tuple[str, list[float]]] = []
    rows = [{**ROWS[0], "formula": 5.0}, ROWS[1], {"at": 2, "kind": "inputs", "formula": 6.0}]
    layers = [
        facets.with_column("formula", lambda panel: seen.append((panel.y, list(panel.part[panel.y])))),
        facets.dots(),
    ]
    figure = facet(rows, layers, key="k", title="", caption="", x="at", y="amount", hue="kind", looks=facets.KIND_LOOKS)
    assert seen == [("formula", [5.0, 6.0])]
    assert figure.description == "1 panel. inputs from 1 to 2.", "where what y is"


def test_panels_may_have_separate_axis_scales() -> None:
    """One panel may be logarithmic while another one begins at 0."""
    panels: list[Panel] = []
    drawn(
        facets.dots(),
        facets.dots(hollow="of"),
        where(facets.from_zero, of="formula"),
        where(facets.logarithmic, of="measured"),
        panels.append,
        col="of",
    )
    assert [panel.axes.get_yscale() for panel in panels] == ["linear", "log"]
    bottom, top = panels[0].axes.get_ylim()
    assert (bottom, top) == (0, pytest.approx(2.1, abs=0.2))
    filled, hollow = panels[0].axes.lines
    assert filled.get_markerfacecolor() == facets.KIND_LOOKS["inputs"].colour
    assert hollow.get_markerfacecolor() == "none"
