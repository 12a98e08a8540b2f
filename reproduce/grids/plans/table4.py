"""Table 4: the four configurations of buffers, trained."""

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.grids import recipes

#: The four configurations: inputs and weights kept, only inputs, only weights, neither.
METHODS = (methods.DELAYED_GRADIENTS, methods.DSP, methods.APPROXIMATE_INPUTS, methods.PETRA)
#: Data sets and networks by scale. The paper's data set is CIFAR-100.
GRIDS = {
    "paper": (("cifar100", "cifar10"), ("revnet18", "revnet34", "revnet50")),
    "small": (("cifar10",), ("revnet18", "chain8")),
}


def cells(scale: str) -> list[Cell]:
    """Return every configuration at k = 1 on every network and data set of the scale."""
    datasets, networks = GRIDS.get(scale, ((), ()))
    return [cell for dataset in datasets for cell in recipes.cells(scale, networks, [1], METHODS, dataset=dataset)]
