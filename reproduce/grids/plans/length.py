"""Training length: PETRA and backpropagation, the drops at the same fractions of the training."""

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids import recipes

NETWORK, ACCUMULATION = "revnet18", 1  # at k = 1 gradients are the most updates late
COMPARED = (methods.PETRA, methods.BACKPROPAGATION)
#: Epochs by scale; the scale's own length is among them, so that its cells are those of Table 2.
LENGTHS = {"small": (3, 9, 27), "paper": (20, 80, 300)}


def cells(scale: str) -> list[Cell]:
    """PETRA and backpropagation at every length: the short ones first, since a long one takes as long as all others."""
    return [
        planned(scale, method, epochs, seed)
        for epochs in LENGTHS.get(scale, ())
        for seed in recipes.seeds(scale)
        for method in COMPARED
    ]


def planned(scale: str, method: Method, epochs: int, seed: int = 0) -> TrainingCell:
    """The cell of a method and a length, with the drops at the fractions of it at which the scale has them."""
    drops = {"small": (2 * epochs // 3,), "paper": (epochs // 2, 3 * epochs // 4)}[scale]
    return recipes.cell(scale, NETWORK, method, ACCUMULATION, seed, epochs=epochs, drops=drops)
