"""Seconds of a batch under forward gradients, beside backpropagation of the same network, and PETRA."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from petra_core import Stage
from petra_core.methods import BACKPROPAGATION, PETRA

from .setting import CLASSES, DEVICES, NARROW, SGD, SuiteNetwork, open_device, step_of_full_pipeline, synchronize

BLOCKS = 8
#: Of the local guess of the global target: space and derivative.
WAYS = {
    "activations": ("activations", "projection"),
    "activations, jvp": ("activations", "jvp"),
    "weights": ("weights", "projection"),
}


@dataclass(frozen=True)
class Blocks(SuiteNetwork):
    """ResNet-18 in 8 blocks."""

    def stages(self, device: torch.device) -> list[Stage]:
        """The blocks, as training has them."""
        from reproduce.forward_gradients.blocks import local_resnet

        stages = local_resnet(BLOCKS, num_classes=CLASSES, width=self.width)
        return [stage.to(device).to(memory_format=torch.channels_last) for stage in stages]


NETWORK = Blocks(18, width=4, batch=4, size=16)


@functools.lru_cache(maxsize=1)
def _step(way: str, device_name: str) -> Callable[[], None]:
    if way == PETRA.name:
        return step_of_full_pipeline(NARROW["revnet18"], way, device_name)[1]
    if way == BACKPROPAGATION.name:
        return step_of_full_pipeline(NETWORK, way, device_name)[1]
    # Not at the top: commits of before have none of it, and asv imports every module to find benchmarks.
    from reproduce.forward_gradients.blocks import auxiliary
    from reproduce.forward_gradients.settings import Derivative, ForwardGradient, Space
    from reproduce.forward_gradients.training import ForwardGradients

    device = open_device(device_name)
    space, derivative = WAYS[way]
    settings = ForwardGradient(space=Space(space), derivative=Derivative(derivative))
    networks = auxiliary("mlp", BLOCKS, num_classes=CLASSES, width=NETWORK.width)
    training = ForwardGradients(NETWORK.stages(device), settings, auxiliary=networks, optimizer=SGD, seed=0)
    images, labels = NETWORK.micro_batch(device)

    def step() -> None:
        training.step(images, labels)
        synchronize(device)

    step()  # the first one counts bytes
    return step


class Steps:
    """A batch, narrow networks."""

    params = (["BACKPROPAGATION", "PETRA", "activations", "activations, jvp", "weights"], DEVICES)
    param_names = ("way", "device")
    version = "1"

    def setup(self, way: str, device: str) -> None:
        self.step = _step(way, device)

    def time_step(self, way: str, device: str) -> None:
        self.step()
