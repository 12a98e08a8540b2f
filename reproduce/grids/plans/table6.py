"""Table 6: the measurements of Table 3 for RevNet-18 under PETRA."""

from petra_core import methods
from reproduce.cells.kinds import Cell, MemoryCell
from reproduce.grids.plans import table3

MODEL = "revnet18"


def cells(scale: str) -> list[Cell]:
    """Return the measurements of Table 3 for this network under PETRA."""
    return [
        cell
        for cell in table3.cells(scale)
        if isinstance(cell, MemoryCell) and cell.model == MODEL and cell.method == methods.PETRA.name
    ]
