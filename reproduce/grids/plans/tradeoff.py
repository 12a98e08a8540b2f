"""The trade-off: accuracy of every method in one setting, and stage times of its network in that setting."""

from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids.plans import accuracy, table5

NETWORK = "revnet18"
#: k by scale: the largest k at which the scale trains all methods, and the micro-batches of a synchronous pipeline.
ACCUMULATION = {"smoke": 4, "small": 16, "paper": 16}
REPETITIONS = {"smoke": 20, "small": 50, "paper": 50}


def cells(scale: str) -> list[Cell]:
    """Return the cells of the rivals at one k, and one that times the stages of their network."""
    if scale not in ACCUMULATION:
        return []
    trained = [
        cell
        for cell in accuracy.cells(scale)
        if isinstance(cell, TrainingCell) and (cell.model, cell.accumulation) == (NETWORK, ACCUMULATION[scale])
    ]
    one = trained[0]
    timed = table5.plan_cell(scale, one.dataset, one.model, one.width, one.batch_size, REPETITIONS[scale])
    return [timed, *trained]
