"""When a run counts as broken.

The obvious rule, a loss that is not finite, sees little: where BatchNorm divides every activation by its own spread, a
network whose weights have run away goes on with finite losses, and learns nothing. Nor does the training loss tell,
which records have as the mean of an epoch: in a short run the first steps' spike outweighs all that is learned after
it. So what counts is the accuracy at the end.
"""

from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.records.record import DIVERGED, Status
from reproduce.records.results import Run

RULE = "A run counts as broken if a loss was not finite, or if its test accuracy is at most twice that of a guess."


def chance(cell: TrainedCell) -> float:
    """The accuracy of a guess, percent."""
    return 100 / catalogue.by_name(cell.dataset).num_classes


def near_chance(cell: TrainedCell, accuracy: float) -> bool:
    """Return whether a test accuracy in percent is at most twice that of a guess."""
    return accuracy <= 2 * chance(cell)


def broken(run: Run[Cell]) -> str:
    """Why a run is broken, in words; empty if it is not, or if it has no end yet."""
    if run.state.status is Status.FAILED and run.state.reason == DIVERGED:
        return "loss not finite"
    if not run.done:
        return ""
    assert isinstance(run.cell, TrainedCell)
    return "below twice chance" if near_chance(run.cell, run.result["test_accuracy"]) else ""
