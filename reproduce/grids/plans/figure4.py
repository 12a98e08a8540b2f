"""Figure 4: RevNet-18 at every k."""

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.grids.plans import table2

NETWORK = "revnet18"


def cells(scale: str) -> list[Cell]:
    """Return the cells of Table 2 of RevNet-18: PETRA, backpropagation with the same micro-batches and k, the baseline.

    With the same micro-batch and k, both average over the same images, so the comparison is at matched effective batch.
    The paper's figure is for ImageNet; every other data set of the scale is drawn in the same way.
    """
    return [cell for cell in table2.cells(scale) if isinstance(cell, TrainedCell) and cell.model == NETWORK]
