"""Figure 4: RevNet-18 at every k."""

from reproduce.cells.kinds import Cell
from reproduce.grids.plans.sweeps import SWEEPS

NETWORK, DEPTH = "revnet18", 18


def cells(scale: str) -> list[Cell]:
    """RevNet-18 at every k: PETRA, and backpropagation with the same micro-batches and k; and the paper's baseline.

    With the same micro-batch and k both average over the same images: the comparison is at matched effective batch.
    The paper's own is ImageNet; every other data set of the scale is drawn in the same way.
    """
    return [
        cell
        for sweep in SWEEPS
        if sweep.scale == scale
        for dataset in sweep.datasets
        for seed in sweep.seeds(dataset)
        for cell in sweep.cells(dataset, DEPTH, seed)
        if cell.model == NETWORK
    ]
