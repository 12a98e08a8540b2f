"""Table 3: the four configurations of buffers, with measured memory."""

from petra_core import methods
from reproduce.cells.kinds import Cell, MemoryCell
from reproduce.grids import recipes
from reproduce.grids.plans.table4 import METHODS

BATCH, ACCUMULATION = 64, 1  # the published table's
MODELS = ("revnet50", "revnet18", "revnet34")  # in the order of the runs
CHEAPEST_FIRST = METHODS[::-1]
#: Batch size by data set, by scale.
BATCHES = {
    "small": {"imagenet": 1, "cifar10": 2, "imagenet32": 2},
    "paper": dict.fromkeys(("imagenet", "cifar10", "imagenet32"), BATCH),
}


def cells(scale: str) -> list[Cell]:
    """Return the four configurations, to be measured by real runs.

    At `paper` these are all networks and shapes at the paper's batch: 215 GB for the largest. At `small` these are the
    same networks at a batch that needs at most 5 GB, and the smallest of them at the paper's batch, which needs no
    more.
    """
    if scale == "smoke":
        return [held(scale, "cifar10", "revnet18", method, 2, width=4) for method in CHEAPEST_FIRST]
    planned: list[Cell] = [
        held(scale, dataset, model, method, batch_size)
        for dataset, batch_size in BATCHES.get(scale, {}).items()
        for model in MODELS
        for method in CHEAPEST_FIRST
    ]
    if scale == "small":
        affordable = (method for method in CHEAPEST_FIRST if method is not methods.DELAYED_GRADIENTS)
        planned += [held(scale, "cifar10", "revnet18", method) for method in affordable]
    return planned


def held(
    scale: str, dataset: str, model: str, method: methods.Method, batch_size: int = BATCH, *, width: int = 64
) -> MemoryCell:
    """Return one configuration of one network and shape."""
    return recipes.measured(
        MemoryCell, scale, dataset, model, method, width=width, accumulation=ACCUMULATION, batch_size=batch_size
    )
