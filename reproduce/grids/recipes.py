"""Define how a network is trained at each scale: the paper's settings, and their replacements at smaller scales.

`paper` is arXiv 2406.02052, section 4.1: 300 epochs on CIFAR (drops after 150 and 225), 90 on both ImageNets (after 30,
60 and 80), 5 epochs of warm-up, micro-batches of 64 whose gradients are averaged over k, and the learning rate 0.1 *
64k / 256. The baselines are trained with one batch per update: 128 on CIFAR and ImageNet32, 256 on ImageNet. `narrow`
is the same on a network that a CPU can train, with six to nine hours per cell on one core. `small` is CIFAR-10 for 3
epochs with networks at an eighth of their width, with some minutes per cell on one core. It keeps the paper's data set,
augmentation, number of stages (and so every delay), optimizer, weight decay, and the rule of the learning rate. `smoke`
is handwritten digits, with minutes for all cells; after the drop of the learning rate the weights move so little that
delays no longer matter.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from petra_core import methods
from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, ShapedCell, TrainingCell
from reproduce.cells.rates import learning_rate

ShapedCellT = TypeVar("ShapedCellT", bound=ShapedCell)

ACCUMULATIONS = (2, 1, 4, 8, 16, 32)  # the paper's; 2 comes first, because the authors' command lines use it
DATASETS = ("cifar10", "imagenet32", "imagenet")  # of Table 2
BASELINE_BATCH = {"cifar10": 128, "cifar100": 128, "imagenet32": 128, "imagenet": 256}
EPOCHS = {"cifar10": 300, "cifar100": 300, "imagenet32": 90, "imagenet": 90}
DROPS = {300: (150, 225), 90: (30, 60, 80)}
#: Seeds by scale, for `paper` by data set: the paper has the mean of 3 runs for CIFAR-10, and one run for ImageNets.
SEEDS = {"smoke": (0,), "small": (0, 1, 2), "narrow": (0,)}
PAPER_SEEDS = {"cifar10": (0, 1, 2), "cifar100": (0, 1, 2), "imagenet32": (0,), "imagenet": (0,)}
#: Settings of a scale that replace the paper's.
CHANGES: dict[str, dict[str, Any]] = {
    "paper": {},
    "narrow": {"width": 8, "loader": "memory"},
    "small": {"width": 8, "loader": "memory", "batch_size": 32, "epochs": 3, "warmup_epochs": 0.5, "drops": (2,)},
    # The paper's 300 epochs tolerate a rate at which delayed gradients are barely stable. 176 micro-batches do not.
    "smoke": {"width": 8, "loader": "memory", "batch_size": 32, "epochs": 4, "warmup_epochs": 0.5, "drops": (3,)}
    | {"dataset": "digits", "reference_rate": 0.02},
}
#: Width of chains. They keep it, while other networks widen to 8 times theirs, and 48 blocks must be affordable.
CHAINS: dict[str, dict[str, Any]] = {"small": {"width": 16, "stem": "stride4"}, "smoke": {"width": 24}}


def settings(
    scale: str,
    /,
    network: str = "revnet18",
    method: methods.Method = methods.PETRA,
    accumulation: int = 1,
    seed: int = 0,
    **changes: Any,
) -> dict[str, Any]:
    """Return the scale's settings for training a network, modified by `changes`.

    A change of `reference_rate` sets the learning rate at 256 samples per update.
    """
    chain = network.startswith("chain")
    chosen = CHANGES[scale] | (CHAINS.get(scale, {}) if chain else {}) | changes
    images = catalogue.by_name(chosen.setdefault("dataset", "cifar10"))
    batch_size = chosen.setdefault("batch_size", 64)
    epochs = chosen["epochs"] if "epochs" in chosen else EPOCHS[images.name]
    reference = chosen.pop("reference_rate", 0.1)
    values: dict[str, Any] = {
        "scale": scale,
        "dataset": images.name,
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
        "learning_rate": learning_rate(batch_size, accumulation, reference=reference),
        "momentum": 0.9,
        "weight_decay": images.weight_decay,
        "augmentation": images.augmentations[0],
        "loader": "ffcv",
        "precision": "float32",
        "seed": seed,
    }
    return values | chosen


def cell(scale: str, /, *arguments: Any, **changes: Any) -> TrainingCell:
    """Return the cell that trains with `settings(...)` and records the accuracy."""
    return TrainingCell(**settings(scale, *arguments, **changes))


def cells(
    scale: str, networks: Iterable[str], ks: Sequence[int], compared: Sequence[methods.Method], **changes: Any
) -> list[Cell]:
    """Return the cells of networks, k and methods, in this order, with all seeds of the scale and its data set."""
    return [
        cell(scale, network, method, k, seed, **changes)
        for network in networks
        for k in ks
        for method in compared
        for seed in seeds(scale, changes.get("dataset", "cifar10"))
    ]


def measured(
    kind: type[ShapedCellT], scale: str, dataset: str, model: str, method: methods.Method, **settings: Any
) -> ShapedCellT:
    """Return the cell of a kind that measures a residual network on images like those of a data set."""
    images = catalogue.by_name(dataset)
    shape: dict[str, Any] = {"dataset": images.name, "image_size": images.image_size, "stem": images.stem}
    return kind(scale=scale, model=model, method=method.name, seed=0, **shape, **settings)


def seeds(scale: str, dataset: str = "cifar10") -> tuple[int, ...]:
    """Return the seeds of every cell of a data set, or none if a scale has no cells of it."""
    return PAPER_SEEDS[dataset] if scale == "paper" else SEEDS.get(scale, ())
