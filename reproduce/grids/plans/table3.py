"""Table 3: the four configurations of buffers, with measured memory."""

from petra_core import methods
from reproduce.cells.kinds import Cell, MemoryCell
from reproduce.grids import recipes
from reproduce.grids.plans.table4 import METHODS

BATCH, ACCUMULATION = 64, 1  # the published table's
MODELS = ("revnet50", "revnet18", "revnet34")  # in the order of the runs


def cells(scale: str) -> list[Cell]:
    """Return the four configurations, to be measured by real runs.

    At `paper` these are all networks and shapes at the paper's batch: 215 GB for the largest. At `small` these are the
    same networks at a batch that needs at most 5 GB, and the smallest of them at the paper's batch, which needs no
    more.
    """
    if scale == "smoke":
        return [*_four(scale, "cifar10", "revnet18", 2, width=4)]
    if scale == "small":
        batches = {"imagenet": 1, "cifar10": 2, "imagenet32": 2}
        at_paper_batch = _four(scale, "cifar10", "revnet18", BATCH)
        return [
            *(cell for name, batch in batches.items() for model in MODELS for cell in _four(scale, name, model, batch)),
            *(cell for cell in at_paper_batch if cell.method != methods.DELAYED_GRADIENTS.name),
        ]
    if scale == "paper":
        return [
            cell
            for name in ("imagenet", "cifar10", "imagenet32")
            for model in MODELS
            for cell in _four(scale, name, model, BATCH)
        ]
    return []


def _four(scale: str, dataset: str, model: str, batch_size: int, *, width: int = 64) -> list[MemoryCell]:
    """Return the four configurations of one network and shape, the cheapest first."""
    return [held(scale, dataset, model, method, batch_size, width=width) for method in reversed(METHODS)]


def held(
    scale: str, dataset: str, model: str, method: methods.Method, batch_size: int = BATCH, *, width: int = 64
) -> MemoryCell:
    """Return one configuration of one network and shape."""
    return recipes.measured(
        MemoryCell, scale, dataset, model, method, width=width, accumulation=ACCUMULATION, batch_size=batch_size
    )
