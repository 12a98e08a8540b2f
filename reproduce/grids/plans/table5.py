"""Table 5: every stage of the RevNets, timed."""

from petra_core import methods
from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, StageCostCell
from reproduce.grids import recipes

MODELS = ("revnet18", "revnet34", "revnet50")
PAPER_WIDTH = 64
#: By scale: width, samples per micro-batch, timed repetitions of each stage, models.
SETTINGS = {
    "smoke": (4, 8, 5, MODELS),
    "small": (PAPER_WIDTH, 64, 5, MODELS[:2]),
    "paper": (PAPER_WIDTH, 64, 50, MODELS),
}


def cells(scale: str) -> list[Cell]:
    """Return every stage of the RevNets on images like CIFAR-10's, timed under PETRA."""
    if scale not in SETTINGS:
        return []
    width, batch_size, repetitions, models = SETTINGS[scale]
    return [plan_cell(scale, catalogue.CIFAR10.name, model, width, batch_size, repetitions) for model in models]


def plan_cell(scale: str, dataset: str, model: str, width: int, batch_size: int, repetitions: int) -> StageCostCell:
    """Return the cell that times every stage of a residual network on such images under PETRA."""
    settings = {"width": width, "accumulation": 1, "batch_size": batch_size, "repetitions": repetitions}
    return recipes.measured(StageCostCell, scale, dataset, model, methods.PETRA, **settings)
