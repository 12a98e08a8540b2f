"""Table 2: the paper's baselines, PETRA at every k, and backpropagation at the effective batch of every k."""

from reproduce.cells.kinds import Cell
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import SWEEPS


def cells(scale: str) -> list[Cell]:
    """Return the paper's baselines, PETRA at every k, and backpropagation at the effective batch of every k."""
    if not (sweep := SWEEPS.get(scale)):
        return []
    return [
        cell
        for depth in sweep.depths
        for dataset in sweep.datasets
        for seed in recipes.seeds(scale, dataset)
        for cell in sweep.cells(dataset, depth, seed)
    ]
