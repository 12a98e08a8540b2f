"""Detect changes of the arithmetic: error of reconstruction, and drift of losses from stored ones.

A change that should not alter results leaves the drift at exactly 0 on the machine that stored the trajectory (the file
names processor and versions). Elsewhere other kernels round differently, which gives a drift of a few rounding errors.
A change of the arithmetic is orders of magnitude larger.
"""

import torch

from petra_core import models

from .setting import CLASSES, METHODS, open_device
from .trajectories import largest_difference, losses, stored

BLOCKS = [1, 2, 5, 10, 30]


class Reconstruction:
    """Track |reconstructed - true| / |true| of the first input of a chain of `blocks` blocks, at unchanged weights."""

    params = (BLOCKS,)
    param_names = ("blocks",)
    version = "1"

    def track_error(self, blocks: int) -> float:
        from reproduce.measures.reconstruction import rounding_errors

        open_device("cpu")
        stages = models.chain(blocks, num_classes=CLASSES, channels=8, stem_stride=4)
        return rounding_errors(stages, torch.randn(4, 3, 32, 32))[1]["input"]

    track_error.unit = "relative"  # type: ignore[attr-defined]  # asv reads it


class Losses:
    """Track the largest relative difference of a loss from the stored one, in a short training on random images."""

    params = (METHODS,)
    param_names = ("method",)
    version = "1"

    def track_drift(self, method: str) -> float:
        return largest_difference(losses(method), stored()["losses"][method])

    track_drift.unit = "relative"  # type: ignore[attr-defined]  # asv reads it
