"""The scale `paper`: the settings of arXiv 2406.02052, section 4.1.

300 epochs on CIFAR (drops after 150 and 225), 90 on both ImageNets (after 30, 60 and 80), 5 epochs of warm-up,
micro-batches of 64 whose gradients are averaged over k, and the learning rate 0.1 * 64k / 256. The baselines are
trained with one batch an update: 128 on CIFAR and ImageNet32, 256 on ImageNet.
"""

from typing import Any

from petra_core import methods
from petra_core.recipe import learning_rate
from reproduce.cells import catalogue
from reproduce.cells.kinds import TrainingCell

ACCUMULATIONS = (2, 1, 4, 8, 16, 32)  # 2 first: it is what the authors' command lines use
DATASETS = ("cifar10", "imagenet32", "imagenet")  # of Table 2
#: Seeds by data set: the paper has the mean of 3 runs for CIFAR-10 and one run for both ImageNets.
SEEDS = {"cifar10": (0, 1, 2), "cifar100": (0, 1, 2), "imagenet32": (0,), "imagenet": (0,)}
BASELINE_BATCH = {"cifar10": 128, "cifar100": 128, "imagenet32": 128, "imagenet": 256}
MICRO_BATCH = 64
EPOCHS = {"cifar10": 300, "cifar100": 300, "imagenet32": 90, "imagenet": 90}
DROPS = {300: (150, 225), 90: (30, 60, 80)}


def settings(
    dataset: str = "cifar10",
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    *,
    reference_rate: float = 0.1,
    **changes: Any,
) -> dict[str, Any]:
    """The paper's settings of a cell, or those of one that differs from them by `changes`."""
    images = catalogue.by_name(dataset)
    chain = network.startswith("chain")
    batch_size = changes.get("batch_size", MICRO_BATCH)
    epochs = changes.get("epochs") or EPOCHS[dataset]
    values: dict[str, Any] = {
        "scale": "paper",
        "dataset": dataset,
        "image_size": images.image_size,
        "model": network,
        "stem": "stride2" if chain else images.stem,
        "width": 64,
        "method": method.name,
        "accumulation": accumulation,
        "batch_size": batch_size,
        "epochs": epochs,
        "warmup_epochs": 5.0,
        "drops": DROPS.get(epochs, ()),
        "drop_factor": 0.1,
        "learning_rate": learning_rate(batch_size, accumulation, reference=reference_rate),
        "momentum": 0.9,
        "weight_decay": images.weight_decay,
        "augmentation": images.augmentations[0],
        "loader": "ffcv",
        "precision": "float32",
        "seed": seed,
    }
    return values | changes


def cell(*arguments: Any, **changes: Any) -> TrainingCell:
    """Train with `settings(...)`, and record the accuracy."""
    return TrainingCell(**settings(*arguments, **changes))
