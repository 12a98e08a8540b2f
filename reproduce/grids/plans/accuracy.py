"""All methods in one setting."""

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.grids import recipes

#: Above the smoke scale without reversible backpropagation, whose gradients equal those of backpropagation.
COMPARED = tuple(method for method in methods.PAPER if method is not methods.REVERSIBLE_BACKPROPAGATION)
REVERSIBLE = ("revnet18", "chain8")
#: Networks and k by scale.
GRIDS = {"small": (REVERSIBLE, (1, 4, 16)), "paper": (("revnet18",), recipes.ACCUMULATIONS)}


def cells(scale: str) -> list[Cell]:
    """Return all methods in one setting: PETRA and its exact counterpart, and all asynchronous rivals."""
    if scale == "smoke":
        ends = (methods.PETRA, methods.BACKPROPAGATION)
        return [
            *(recipes.cell("smoke", network, m, k) for k in (1, 4) for network in REVERSIBLE for m in methods.PAPER),
            *(recipes.cell("smoke", "resnet18", methods.BACKPROPAGATION, k) for k in (1, 4)),  # as in Table 2
            *(recipes.cell("smoke", network, m, 32) for network in REVERSIBLE for m in ends),
        ]
    networks, accumulations = GRIDS.get(scale, ((), ()))
    return [
        recipes.cell(scale, network, method, k, seed)
        for network in networks
        for k in accumulations
        for method in COMPARED
        for seed in recipes.seeds(scale)
    ]
