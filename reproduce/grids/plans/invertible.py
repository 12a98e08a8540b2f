"""Invertible down-sampling: a RevNet-18 without buffered blocks, compared with the paper's."""

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.grids import recipes

COMPARED = (methods.PETRA, methods.BACKPROPAGATION)
OURS, PAPERS = "invertible_revnet", "revnet"
NETWORKS = (f"{OURS}18", f"{PAPERS}18")
ACCUMULATIONS = {"small": (4, 1), "paper": (2, 1)}


def cells(scale: str) -> list[Cell]:
    """Return both networks under PETRA and backpropagation."""
    return [cell for k in ACCUMULATIONS.get(scale, ()) for cell in recipes.cells(scale, NETWORKS, [k], COMPARED)]
