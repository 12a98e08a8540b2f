"""Accuracy against k, drawn: scaled to the runs, every seed there, nothing where nothing is."""

from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce.show import plots, sweep_plots
from reproduce.show.statistics import Estimate

LABELS = {"matched": "same batch", "baseline": "64 images an update"}
SVG = f"{{{plots.SVG}}}"


def draw(
    petra: dict[int, dict[int, float]], baseline: dict[int, float], differences: dict[int, Estimate | None]
) -> ElementTree.Element:
    svg = sweep_plots.draw(
        key="k",
        title="Title",
        description="What is seen.",
        axis="k",
        accuracies={methods.PETRA: petra, methods.BACKPROPAGATION: {1: {}, 32: {}}},
        baseline=baseline,
        labels=LABELS,
        differences={"matched": differences, "baseline": {}},
    )
    return ElementTree.fromstring(svg)


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(element.itertext()).strip() for element in svg.iter(f"{SVG}text")]


def dots(svg: ElementTree.Element, colour: str) -> int:
    return sum(colour in element.get("style", "") for element in svg.iter(f"{SVG}use"))


def test_every_seed_is_a_dot_and_every_series_has_a_name() -> None:
    svg = draw({1: {0: 50.0, 1: 52.0, 2: 51.0}, 32: {0: 60.0}}, {0: 55.0, 1: 56.0}, {1: Estimate(-1.0, -2.0, 0.0, 3)})
    assert dots(svg, plots.COLOURS[methods.PETRA]) >= 4
    names = texts(svg)
    assert "PETRA" in names
    assert "Backpropagation, 64 images an update" in names
    assert "to backpropagation, same batch" in names
    assert not any(name.startswith("Backpropagation, same batch") for name in names)  # it has no runs
    assert {"1", "32"} <= set(names)


def test_without_differences_there_is_no_empty_legend() -> None:
    svg = draw({1: {0: 50.0}, 32: {}}, {}, {1: None, 32: None})
    assert "to backpropagation, same batch" not in texts(svg)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([50.0, 60.0], 45.0, 65.0),
        ([70.0], 69.5, 70.5),  # at least half a point
        ([99.0, 89.0], 84.0, 100.0),  # a percentage
        ([1.0, 9.0], 0.0, 13.0),
    ],
)
def test_the_panel_is_scaled_to_the_runs_and_not_to_their_bands(values: list[float], low: float, high: float) -> None:
    assert sweep_plots._limits(values) == (low, high)
