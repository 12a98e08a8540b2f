"""Table 4: the four configurations of what is buffered, trained."""

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids import paper, small

#: The four configurations: (inputs kept, weights kept).
CONFIGURATIONS = {
    (True, True): methods.DELAYED_GRADIENTS,
    (True, False): methods.DSP,
    (False, True): methods.APPROXIMATE_INPUTS,
    (False, False): methods.PETRA,
}
#: Data sets and networks by scale; the paper's is CIFAR-100.
GRIDS = {
    "paper": (("cifar100", "cifar10"), ("revnet18", "revnet34", "revnet50")),
    "small": (("cifar10",), ("revnet18", "chain8")),
}


def cells(scale: str) -> list[Cell]:
    """Every configuration at k = 1 on every network and data set of the scale."""
    datasets, networks = GRIDS.get(scale, ((), ()))
    return [
        planned(scale, dataset, network, method, seed)
        for dataset in datasets
        for network in networks
        for method in CONFIGURATIONS.values()
        for seed in (small.SEEDS if scale == "small" else paper.SEEDS[dataset])
    ]


def planned(scale: str, dataset: str, network: str, method: Method, seed: int = 0) -> TrainingCell:
    """The cell of a network and a method on a data set at k = 1."""
    if scale == "small":
        return small.cell(network, method, 1, seed, dataset=dataset)
    return paper.cell(dataset, network, method, 1, seed)
