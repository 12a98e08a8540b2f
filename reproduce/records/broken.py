"""When a run counts as broken.

The obvious rule, a loss that is not finite, sees little: where BatchNorm divides every activation by its own spread, a
network whose weights have run away goes on with finite losses, and learns nothing. So a finished run is broken, too,
if it has not learned: its training loss is not below that of a guess, or its accuracy is about that of one.
"""

import math

from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.records.record import Status
from reproduce.records.results import Run

__all__ = ["RULE", "broken", "chance"]

FACTOR = 1.5  # of the accuracy of a guess, up to which an accuracy is about that of a guess
DIVERGED = "diverged"

RULE = (
    "A run counts as broken if a loss was not finite; or if the training loss of its last epoch is not below "
    f"ln(classes), that of a guess; or if its test accuracy is at most {FACTOR:g} times that of a guess. "
    "The first alone would miss most: with BatchNorm, a network whose weights have run away goes on with finite losses."
)


def chance(cell: TrainedCell) -> float:
    """The accuracy of a guess, percent."""
    return 100 / catalogue.by_name(cell.dataset).num_classes


def broken(run: Run[Cell]) -> str:
    """Why a run is broken, in words; empty if it is not, or if it has no end yet."""
    if run.state.status is Status.FAILED and run.state.reason == DIVERGED:
        return "loss not finite"
    if not run.done:
        return ""
    assert isinstance(run.cell, TrainedCell)
    guess, loss = chance(run.cell), run.result["train_loss"]
    if loss is not None and loss >= math.log(100 / guess):
        return "loss of a guess"
    return "accuracy of a guess" if run.result["test_accuracy"] <= FACTOR * guess else ""
