"""Invertible down-sampling: a RevNet-18 without a buffered block, beside the paper's."""

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids import paper, small

COMPARED = (methods.PETRA, methods.BACKPROPAGATION)
OURS, PAPERS = "invertible_revnet", "revnet"
NETWORKS = (f"{OURS}18", f"{PAPERS}18")
ACCUMULATIONS = {"small": (4, 1), "paper": (2, 1)}


def cells(scale: str) -> list[Cell]:
    """Both networks under PETRA and backpropagation."""
    return [
        planned(scale, network, method, k, seed)
        for k in ACCUMULATIONS.get(scale, ())
        for network in NETWORKS
        for method in COMPARED
        for seed in (small.SEEDS if scale == "small" else paper.SEEDS["cifar10"])
    ]


def planned(scale: str, network: str, method: Method, accumulation: int, seed: int = 0) -> TrainingCell:
    """The cell of a network and a method at k = `accumulation`."""
    if scale == "small":
        return small.cell(network, method, accumulation, seed)
    return paper.cell("cifar10", network, method, accumulation, seed)
