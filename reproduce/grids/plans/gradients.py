"""Figures 5 and 6: gradients of PETRA beside delayed and end-to-end ones."""

from petra_core import methods
from reproduce.cells.kinds import Cell, GradientsCell
from reproduce.grids import paper, small


def cells(scale: str) -> list[Cell]:
    """RevNet-18 as in the paper, and the chain of 8: in RevNet-18 only stage 1 works on a reconstructed input."""
    if scale == "small":
        return [
            GradientsCell(**small.settings(network, methods.PETRA, k, seed), probe_every=50)
            for network, k in (("revnet18", 1), ("chain8", 1), ("revnet18", 4))
            for seed in small.SEEDS
        ]
    if scale == "paper":
        return [
            GradientsCell(**paper.settings("cifar10", "revnet18", methods.PETRA, k, seed), probe_every=500)
            for k in (1, 4)
            for seed in paper.SEEDS["cifar10"]
        ]
    return []
