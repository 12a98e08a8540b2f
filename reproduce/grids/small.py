"""The scale `small`: CIFAR-10, the paper's networks an eighth as wide, 3 epochs; some minutes a cell on one core.

What is small: width 8 instead of 64, micro-batches of 32 instead of 64, 3 epochs instead of 300 (half an epoch of
warm-up, one drop to a tenth after 2). What is the paper's: data set, augmentation, number of stages and so every
delay, optimizer, weight decay, and the rule of the learning rate with its reference 0.1.
"""

from typing import Any

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.grids import paper

ACCUMULATIONS = (1, 4, 32, 2, 8, 16)  # the ends and the middle first
SEEDS = (0, 1, 2)
CHAIN: dict[str, Any] = {"width": 16, "stem": "stride4"}  # works on 8 x 8 pixels, so that 48 blocks are affordable


def settings(
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    *,
    dataset: str = "cifar10",
    **changes: Any,
) -> dict[str, Any]:
    """The settings of a cell of the small grid, or of one that differs from it by `changes`; see `paper.settings`."""
    recipe: dict[str, Any] = {"scale": "small", "width": 8, "batch_size": 32, "loader": "memory"}
    recipe |= {"epochs": 3, "warmup_epochs": 0.5, "drops": (2,)} | (CHAIN if network.startswith("chain") else {})
    return paper.settings(dataset, network, method, accumulation, seed, **recipe | changes)


def cell(*arguments: Any, **changes: Any) -> TrainingCell:
    """Train with `settings(...)`, and record the accuracy."""
    return TrainingCell(**settings(*arguments, **changes))
