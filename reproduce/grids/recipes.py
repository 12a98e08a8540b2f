"""Cells that train a network with the settings of a scale from `small` upwards, by the name of the scale."""

from typing import Any

from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.grids import narrow, paper, small


def settings(
    scale: str,
    network: str,
    method: Method,
    accumulation: int,
    seed: int = 0,
    *,
    dataset: str = "cifar10",
    **changes: Any,
) -> dict[str, Any]:
    """The scale's settings for training a network on a data set, or those that differ from them by `changes`."""
    if scale == "paper":
        return paper.settings(dataset, network, method, accumulation, seed, **changes)
    if scale == "narrow":
        return narrow.settings(dataset, network, method, accumulation, seed, **changes)
    return small.settings(network, method, accumulation, seed, dataset=dataset, **changes)


def cell(scale: str, network: str, method: Method, accumulation: int, seed: int = 0, **changes: Any) -> TrainingCell:
    """Train with `settings(...)`, and record the accuracy."""
    return TrainingCell(**settings(scale, network, method, accumulation, seed, **changes))


def seeds(scale: str, dataset: str = "cifar10") -> tuple[int, ...]:
    """The seeds of every cell of a data set; none where a scale has no cells of it."""
    return {"small": small.SEEDS, "narrow": narrow.SEEDS, "paper": paper.SEEDS[dataset]}.get(scale, ())
