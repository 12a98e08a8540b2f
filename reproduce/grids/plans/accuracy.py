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
            *(cell for k in (1, 4) for cell in recipes.cells(scale, REVERSIBLE, [k], methods.PAPER)),
            *recipes.cells(scale, ["resnet18"], (1, 4), [methods.BACKPROPAGATION]),  # as in Table 2
            *recipes.cells(scale, REVERSIBLE, [32], ends),
        ]
    return recipes.cells(scale, *GRIDS.get(scale, ((), ())), COMPARED)
