"""Scales: grids of cells that may be compared, from minutes to the paper's own size.

A scale says how close to the paper a result is; results of different scales never share a column. `smoke` is the scale
for everybody: real images that come with a dependency, networks a few channels wide, minutes on two cores. It shows
that every method trains, and how loudly it fails where it does not; it says nothing about the paper's accuracies.

This module exports Scale, by_name, digits_cell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from petra_core.recipe import learning_rate
from reproduce.cells import Cell, CellError, TrainingCell, near_matches
from reproduce.records import State, Status

__all__ = ["SCALES", "Scale", "by_name", "digits_cell"]


@dataclass(frozen=True)
class Scale:
    """A grid of cells, and what is expected of it.

    Attributes:
        name: as on the command line, and in every cell.
        title: for people.
        cells: in the order in which they are run.
        target_accuracy: percent that a run is expected to exceed.
        target_accumulations: at these k.

    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    target_accuracy: float
    target_accumulations: tuple[int, ...]

    def falls_short(self, cell: Cell, state: State, test_accuracy: float | None) -> bool:
        """Whether something was expected of the cell's accuracy that its result, if there is one, does not fulfil."""
        if not isinstance(cell, TrainingCell) or cell.accumulation not in self.target_accumulations:
            return False
        if state.status is Status.DONE:
            return test_accuracy is None or test_accuracy <= self.target_accuracy
        return state.status is Status.FAILED


# All of J = 10 stages, so that the delays are the same. The chain is one run of 8 reversible blocks, where RevNet-18
# has runs of at most 2; it keeps its width, while the others widen to 8 times theirs.
DIGITS_NETWORKS = {
    "revnet18": {"model": "revnet18", "stem": "cifar", "width": 12},
    "resnet18": {"model": "resnet18", "stem": "cifar", "width": 12},
    "chain8": {"model": "chain8", "stem": "stride2", "width": 48},
}


#: The paper's rule has 0.1. Its 300 epochs forgive a rate at which delayed gradients are barely stable; the 236
#: micro-batches here do not: at 0.1 and k = 1, ResNet-18 misses the target under PETRA.
DIGITS_REFERENCE_RATE = 0.0125


def digits_cell(
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    **changes: Any,
) -> TrainingCell:
    """A cell of the smoke grid, or one that differs from it by `changes`.

    The paper's recipe in the few epochs that minutes allow: linear warm-up, then one drop to a tenth, after which the
    weights move so little that delays no longer matter. The learning rate is in proportion to batch_size * k as in the
    paper's rule, from a lower reference (`DIGITS_REFERENCE_RATE`).
    """
    batch_size = changes.get("batch_size", 24)
    settings: dict[str, Any] = {
        "scale": "smoke",
        "dataset": "digits",
        "image_size": 8,
        **DIGITS_NETWORKS[network],
        "method": method.name,
        "accumulation": accumulation,
        "batch_size": batch_size,
        "epochs": 4,
        "warmup_epochs": 0.5,
        "drops": (3,),
        "drop_factor": 0.1,
        "learning_rate": learning_rate(batch_size, accumulation, reference=DIGITS_REFERENCE_RATE),
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "augmentation": "none",
        "loader": "memory",
        "precision": "float32",
        "seed": seed,
    }
    return TrainingCell(**settings | changes)


def _smoke() -> Scale:
    from reproduce.tables import table1  # not at the top: tables import this module's neighbours

    training = [
        digits_cell(network, method, accumulation, seed)
        for seed in (0, 1)
        for network in DIGITS_NETWORKS
        for accumulation in (1, 4, 32)
        for method in methods.ALL
    ]
    return Scale(
        name="smoke",
        title="Smoke: handwritten digits, narrow networks, minutes",
        cells=(*table1.cells("smoke"), *training),
        target_accuracy=90.0,
        target_accumulations=(1, 4),
    )


#: Name -> what makes the scale.
SCALES: dict[str, Callable[[], Scale]] = {"smoke": _smoke}


def by_name(name: str) -> Scale:
    """The scale called `name`.

    Raises:
        CellError: there is none; near matches are listed.

    """
    if name not in SCALES:
        raise CellError(f"there is no scale {name!r}; {near_matches(name, SCALES)}")
    return SCALES[name]()
