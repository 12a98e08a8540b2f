"""The scale `smoke`: handwritten digits, networks a few channels wide, minutes on two cores."""

from typing import Any

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.grids import paper

# All of J = 10 stages, so that the delays are the same. The chain is one run of 8 reversible blocks, where RevNet-18
# has runs of at most 2; it keeps its width, while the others widen to 8 times theirs.
DIGITS_NETWORKS = {
    "revnet18": {"model": "revnet18", "stem": "cifar", "width": 8},
    "resnet18": {"model": "resnet18", "stem": "cifar", "width": 8},
    "chain8": {"model": "chain8", "stem": "stride2", "width": 24},
}

#: The paper's rule has 0.1. Its 300 epochs forgive a rate at which delayed gradients are barely stable; the 176
#: micro-batches here do not.
DIGITS_REFERENCE_RATE = 0.02


def digits_settings(
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    *,
    dataset: str = "digits",
    **changes: Any,
) -> dict[str, Any]:
    """The settings of a cell of the smoke grid, or of one that differs from it by `changes`; see `paper.settings`.

    The paper's recipe in the few epochs that minutes allow: linear warm-up, then one drop to a tenth, after which the
    weights move so little that delays no longer matter.
    """
    recipe: dict[str, Any] = {"scale": "smoke", "reference_rate": DIGITS_REFERENCE_RATE, **DIGITS_NETWORKS[network]}
    recipe |= {"batch_size": 32, "epochs": 4, "warmup_epochs": 0.5, "drops": (3,), "loader": "memory"}
    return paper.settings(dataset, network, method, accumulation, seed, **recipe | changes)


def digits_cell(*arguments: Any, **changes: Any) -> TrainingCell:
    """Train with `digits_settings(...)`, and record the accuracy."""
    return TrainingCell(**digits_settings(*arguments, **changes))
