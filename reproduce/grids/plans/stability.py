"""Stability: every k, learning rate and warm-up, with one seed."""

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.grids import recipes

COMPARED = (methods.PETRA, methods.BACKPROPAGATION)
REFERENCE_RATES = (0.0015, 0.00625, 0.025, 0.1, 0.4, 1.6)  # 0.1 is the paper's
GRIDS = {"small": (1, (0.0, 0.5)), "paper": (10, (0.0, 5.0))}  # epochs, and epochs of warm-up


def cells(scale: str) -> list[Cell]:
    """Return every point of the map, with one seed."""
    epochs, warmups = GRIDS.get(scale, (0, ()))
    return [
        recipes.cell(*(scale, "chain8", method, k), reference_rate=rate, warmup_epochs=warmup, epochs=epochs, drops=())
        for warmup in warmups
        for k in sorted(recipes.ACCUMULATIONS)
        for rate in REFERENCE_RATES
        for method in COMPARED
    ]
