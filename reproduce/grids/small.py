"""The scale `small`: CIFAR-10, the paper's networks an eighth as wide, 3 epochs; some minutes a cell on one core.

What is small: width 8 instead of 64, micro-batches of 32 instead of 64, 3 epochs instead of 300 (half an epoch of
warm-up, one drop to a tenth after 2). What is the paper's: data set, augmentation, number of stages and so every
delay, optimizer, weight decay, and the rule of the learning rate with its reference 0.1.
"""

from typing import Any

from petra_core import methods
from petra_core.recipe import learning_rate
from reproduce.cells.kinds import TrainingCell

__all__ = ["ACCUMULATIONS", "SEEDS", "cell", "settings"]

ACCUMULATIONS = (1, 4, 32, 2, 8, 16)  # the ends and the middle first
SEEDS = (0, 1, 2)


def settings(
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    *,
    reference_rate: float = 0.1,
    **changes: Any,
) -> dict[str, Any]:
    """The settings of a cell of the small grid, or of one that differs from it by `changes`.

    Chains have 16 channels and work on 8 x 8 pixels (a stem of stride 4), so that 48 blocks are affordable.
    """
    chain = network.startswith("chain")
    batch_size = changes.get("batch_size", 32)
    values: dict[str, Any] = {
        "scale": "small",
        "dataset": "cifar10",
        "image_size": 32,
        "model": network,
        "stem": "stride4" if chain else "cifar",
        "width": 16 if chain else 8,
        "method": method.name,
        "accumulation": accumulation,
        "batch_size": batch_size,
        "epochs": 3,
        "warmup_epochs": 0.5,
        "drops": (2,),
        "drop_factor": 0.1,
        "learning_rate": learning_rate(batch_size, accumulation, reference=reference_rate),
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "augmentation": "flip_crop",
        "loader": "memory",
        "precision": "float32",
        "seed": seed,
    }
    return values | changes


def cell(*arguments: Any, **changes: Any) -> TrainingCell:
    """Train with `settings(...)`, and record the accuracy."""
    return TrainingCell(**settings(*arguments, **changes))
