"""Stability: every k, learning rate and warm-up, one seed."""

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.grids import paper, small

COMPARED = (methods.PETRA, methods.BACKPROPAGATION)
REFERENCE_RATES = (0.0015, 0.00625, 0.025, 0.1, 0.4, 1.6)  # 0.1 is the paper's
WARMUPS = {"small": (0.0, 0.5), "paper": (0.0, 5.0)}  # epochs


def cells(scale: str) -> list[Cell]:
    """Every point of the map, one seed."""
    if scale == "small":
        return [
            small.cell("chain8", method, k, 0, reference_rate=rate, warmup_epochs=warmup, epochs=1, drops=())
            for warmup in WARMUPS[scale]
            for k in sorted(small.ACCUMULATIONS)
            for rate in REFERENCE_RATES
            for method in COMPARED
        ]
    if scale == "paper":
        return [
            paper.cell(
                *("cifar10", "chain8", method, k, 0), reference_rate=rate, warmup_epochs=warmup, epochs=10, drops=()
            )
            for warmup in WARMUPS[scale]
            for k in sorted(paper.ACCUMULATIONS)
            for rate in REFERENCE_RATES
            for method in COMPARED
        ]
    return []
