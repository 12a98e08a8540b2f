"""Is the arithmetic still the same: the error of reconstruction, and the drift of losses from stored ones.

A change that should not alter results leaves the drift at exactly 0 where the trajectory was stored (the file says on
which processor, with which versions). Elsewhere other kernels round differently, which lifts it to a few rounding
errors; a change of the arithmetic is orders of magnitude larger.
"""

import torch

from petra_core import models

from .setting import CLASSES, METHODS, open_device
from .trajectories import largest_difference, losses, stored

BLOCKS = [1, 2, 5, 10, 30]


class Reconstruction:
    """|reconstructed - true| / |true| of the first input of a chain of so many blocks, at unchanged weights."""

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
    """Largest difference of a loss from the stored one, over its size, in a short training on random images."""

    params = (METHODS,)
    param_names = ("method",)
    version = "1"

    def track_drift(self, method: str) -> float:
        return largest_difference(losses(method), stored()["losses"][method])

    track_drift.unit = "relative"  # type: ignore[attr-defined]  # asv reads it
