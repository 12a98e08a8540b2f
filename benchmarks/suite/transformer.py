"""Seconds of a micro-batch of a RevViT: the gain of PaReprop and of PETRA over reversible backpropagation.

A ViT with BDIA's coupling shows the cost of exact inversion.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from petra_core import Stage
from petra_core.methods import BACKPROPAGATION, PAREPROP, PETRA, REVERSIBLE_BACKPROPAGATION
from reproduce.models.revvit import revvit
from reproduce.models.sizes import TransformerSize
from reproduce.models.vit import vit

from .setting import CLASSES, DEVICES, FULL, THREADS, SuiteNetwork, step_of_full_pipeline


@dataclass(frozen=True)
class RevViT(SuiteNetwork):
    """A RevViT of `depth` blocks with `width` channels per stream and patches of 4 pixels."""

    def stages(self, device: torch.device) -> list[Stage]:
        """Build the stages, one per block."""
        size = TransformerSize(self.width, self.depth, heads=max(3, self.width // 64))
        stages = revvit(size, num_classes=CLASSES, image_size=self.size, patch=4)
        return [stage.to(device) for stage in stages]


class BdiaViT(RevViT):
    """A ViT of the same size in which all blocks except the first have BDIA's coupling."""

    def stages(self, device: torch.device) -> list[Stage]:
        """Build the stages, one per block, the first with the stem."""
        size = TransformerSize(self.width, self.depth, heads=max(3, self.width // 64))
        stages = vit(size, num_classes=CLASSES, image_size=self.size, patch=4, bdia=True)
        return [stage.to(device) for stage in stages]


@functools.lru_cache(maxsize=1)
def _step(network: RevViT, method: str, device: str) -> Callable[[], None]:
    step = step_of_full_pipeline(network, method, device)[1]
    if method == PAREPROP.name and device == "cpu":
        torch.set_num_threads(max(1, THREADS // 2))
    return step


class _TransformerSteps:
    params = ([method.name for method in (REVERSIBLE_BACKPROPAGATION, PAREPROP, PETRA)], DEVICES)
    param_names = ("method", "device")
    version = "1"
    network = RevViT(4, width=48, batch=8, size=16)

    def setup(self, method: str, device: str) -> None:
        self.step = _step(self.network, method, device)

    def time_step(self, method: str, device: str) -> None:
        self.step()


class NarrowTransformer(_TransformerSteps):
    """Time transformers of a few channels, where the engine's share is large."""


class NarrowBdia(_TransformerSteps):
    """Time a narrow ViT with BDIA's coupling, which backpropagation does not invert."""

    params = ([method.name for method in (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PETRA)], DEVICES)
    network = BdiaViT(4, width=48, batch=8, size=16)


if FULL:

    class PaperTransformer(_TransformerSteps):
        """Time RevViT-S with 64 images of CIFAR's size."""

        network = RevViT(12, width=384, batch=64, size=32)
        timeout = 1800
