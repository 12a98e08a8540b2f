"""The trade-off: accuracy of every method in one setting, and the stages of its network timed in that setting."""

from petra_core import methods
from reproduce.cells.kinds import Cell, StageCostCell, TrainingCell
from reproduce.grids.plans import accuracy

NETWORK = "revnet18"
#: k by scale: the largest at which the scale trains all methods; a synchronous pipeline has so many micro-batches.
ACCUMULATION = {"smoke": 4, "small": 16, "paper": 16}
REPETITIONS = {"smoke": 20, "small": 50, "paper": 50}


def cells(scale: str) -> list[Cell]:
    """The cells of the rivals at one k, and one that times the stages of their network."""
    if scale not in ACCUMULATION:
        return []
    trained = [
        cell
        for cell in accuracy.cells(scale)
        if isinstance(cell, TrainingCell) and (cell.model, cell.accumulation) == (NETWORK, ACCUMULATION[scale])
    ]
    one = trained[0]
    timed = StageCostCell(
        scale=scale,
        dataset=one.dataset,
        image_size=one.image_size,
        model=one.model,
        stem=one.stem,
        width=one.width,
        method=methods.PETRA.name,
        accumulation=1,
        batch_size=one.batch_size,
        seed=0,
        repetitions=REPETITIONS[scale],
    )
    return [timed, *trained]
