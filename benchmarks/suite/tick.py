"""Seconds of a micro-batch under each method: one tick of a full pipeline, or all ticks of a non-pipelined method."""

import functools
from collections.abc import Callable

from .setting import DEVICES, FULL, METHODS, NARROW, PAPER, SuiteNetwork, step_of_full_pipeline


@functools.lru_cache(maxsize=1)
def _step(network: SuiteNetwork, method: str, device: str) -> Callable[[], None]:
    return step_of_full_pipeline(network, method, device)[1]


class _TickSteps:
    param_names = ("network", "method", "device")
    version = "1"
    networks = NARROW

    def setup(self, network: str, method: str, device: str) -> None:
        self.step = _step(self.networks[network], method, device)

    def time_step(self, network: str, method: str, device: str) -> None:
        self.step()


class NarrowTick(_TickSteps):
    """Time networks at a sixteenth of the paper's width, where the engine's share is large."""

    params = (list(NARROW), METHODS, DEVICES)


if FULL:

    class PaperTick(_TickSteps):
        """Time the paper's networks with micro-batches of 64 images of CIFAR's size."""

        params = (list(PAPER), METHODS, DEVICES)
        networks = PAPER
        timeout = 1800
