"""Figures 5 and 6: gradients of PETRA, compared with delayed and with end-to-end ones."""

from petra_core import methods
from reproduce.cells.kinds import Cell, GradientsCell
from reproduce.grids import recipes

#: By scale: networks with k, and micro-batches between two that are followed.
GRIDS = {
    "small": ((("revnet18", 1), ("chain8", 1), ("revnet18", 4)), 50),
    "paper": ((("revnet18", 1), ("revnet18", 4)), 500),
}


def cells(scale: str) -> list[Cell]:
    """Return RevNet-18 as in the paper, and the chain of 8: in RevNet-18 only stage 1 uses a reconstructed input."""
    networks, probe_every = GRIDS.get(scale, ((), 0))
    return [
        GradientsCell(**recipes.settings(scale, network, methods.PETRA, k, seed), probe_every=probe_every)
        for network, k in networks
        for seed in recipes.seeds(scale)
    ]
