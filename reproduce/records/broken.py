"""Decide when a run counts as broken.

The obvious rule, a loss that is not finite, misses most cases: where BatchNorm divides every activation by its standard
deviation, a network whose weights have diverged continues with finite losses and learns nothing. The recorded training
loss, the mean of an epoch, does not show it either: in a short run the spike of the first steps outweighs everything
learned after it. So the accuracy at the end decides.
"""

from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.records.run import DIVERGED, Run, Status

RULE = "A run counts as broken if a loss was not finite, or if its test accuracy is at most twice that of a guess."


def chance(cell: TrainedCell) -> float:
    """Return the accuracy of a guess in percent."""
    return 100 / catalogue.by_name(cell.dataset).num_classes


def near_chance(cell: TrainedCell, accuracy: float) -> bool:
    """Return whether a test accuracy in percent is at most twice that of a guess."""
    return accuracy <= 2 * chance(cell)


def broken(run: Run[Cell]) -> str:
    """Return why a run is broken, or an empty string if it is not, or if it has not ended yet."""
    if run.state.status is Status.FAILED and run.state.reason == DIVERGED:
        return "loss not finite"
    if not run.done:
        return ""
    assert isinstance(run.cell, TrainedCell)
    return "below twice chance" if near_chance(run.cell, run.result["test_accuracy"]) else ""
