"""Seconds of the actions of one stage: forward without a graph, backward with reconstruction, update.

The stages are neighbours in RevNet-18: number 2, a reversible block, and number 3, which halves the resolution and
keeps its input. Both do the work of a PETRA stage.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from petra_core import Stage
from petra_core.tape import as_streams, as_value, detach

from .setting import DEVICES, FULL, NARROW, PAPER, SGD, SuiteNetwork, open_device, synchronize

STAGES = {"reversible": 2, "buffered": 3}


@dataclass(frozen=True)
class Work:
    """The three actions of one stage, including the device's work."""

    forward: Callable[[], None]
    backward: Callable[[], None]
    update: Callable[[], None]


@functools.lru_cache(maxsize=1)
def _work(network: SuiteNetwork, kind: str, device_name: str) -> Work:
    device = open_device(device_name)
    stages = network.stages(device)
    stage = stages[STAGES[kind]]
    assert stage.invertible == (kind == "reversible")
    with torch.no_grad():
        streams = detach(as_streams(network.micro_batch(device)[0]))
        for below in stages[: STAGES[kind]]:
            streams = detach(as_streams(below(as_value(streams))))
        outputs = detach(as_streams(stage(as_value(streams))))
    gradients = tuple(1e-3 * torch.randn_like(output) for output in outputs)
    parameters = list(stage.parameters())

    def forward() -> None:
        with torch.no_grad():
            stage(as_value(streams))
        synchronize(device)

    def backward() -> None:
        with torch.enable_grad():
            tape = stage.reconstruct(outputs) if stage.invertible else stage.recompute(stage.keep(streams))
        tape.gradients(gradients, parameters)
        synchronize(device)

    return Work(forward, backward, _update(stage, device))


def _update(stage: Stage, device: torch.device) -> Callable[[], None]:
    optimizer = SGD(stage.parameters())
    for parameter in stage.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)

    def update() -> None:
        optimizer.step()
        synchronize(device)

    return update


class _Actions:
    params = (list(STAGES), DEVICES)
    param_names = ("stage", "device")
    version = "1"
    network = NARROW["revnet18"]

    def setup(self, stage: str, device: str) -> None:
        self.work = _work(self.network, stage, device)

    def time_forward(self, stage: str, device: str) -> None:
        self.work.forward()

    def time_backward(self, stage: str, device: str) -> None:
        self.work.backward()

    def time_update(self, stage: str, device: str) -> None:
        self.work.update()


class NarrowStage(_Actions):
    """Time RevNet-18 at a sixteenth of the paper's width."""


if FULL:

    class PaperStage(_Actions):
        """Time the paper's RevNet-18 with a micro-batch of 64 images of CIFAR's size."""

        network = PAPER["revnet18"]
