"""Depth: chains of 2 to 48 reversible blocks, under PETRA, DSP and backpropagation."""

from typing import Any

from petra_core import methods
from reproduce.cells.kinds import Cell, ReconstructionCell, TrainingCell
from reproduce.grids import recipes

COMPARED = (methods.PETRA, methods.DSP, methods.BACKPROPAGATION)
BLOCKS = (2, 8, 16, 32, 48)  # J = 4, 10, 18, 34, 50
#: By scale: micro-batches between two that are followed, seeds, and differences to the scale's settings.
GRIDS: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    "small": (100, recipes.seeds("small"), {"epochs": 2, "drops": (1,)}),
    "paper": (1000, (0,), {}),
}


def cells(scale: str) -> list[Cell]:
    """Return every depth at two k. Cells of PETRA, the only one that reconstructs inputs, record their errors."""
    probe_every, seeds, changes = GRIDS.get(scale, (0, (), {}))
    return [
        ReconstructionCell(**settings, probe_every=probe_every) if method.reconstructs else TrainingCell(**settings)
        for k in (1, 8)
        for blocks in BLOCKS
        for method in COMPARED
        for seed in seeds
        for settings in [recipes.settings(scale, f"chain{blocks}", method, k, seed, **changes)]
    ]
