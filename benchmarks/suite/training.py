"""Seconds of a whole training, as `reproduce train` and the grids run it.

It includes what the benchmarks of ticks leave out: batches, deterministic kernels, checks of losses, evaluation,
record.
"""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

from .setting import DEVICES, open_device


@functools.lru_cache(maxsize=1)
def _training(method: str, device_name: str) -> Callable[[], None]:
    """Return a function that trains a cell from start to result. It has run once and loaded data and kernels."""
    device = open_device(device_name)
    # Not at the top: asv imports every module to find benchmarks, and these imports take seconds.
    from petra_core import methods
    from reproduce.grids import recipes
    from reproduce.measures.context import Context
    from reproduce.records.record import Record
    from reproduce.running.execution import execute

    cell = recipes.cell("smoke", "revnet18", methods.by_name(method), 4, epochs=2, drops=(1,))

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            execute(Record(Path(folder), cell), Context(device=device))

    train()
    return train


class Training:
    """Train the smoke scale's RevNet-18 on digits for two epochs."""

    params = (["PETRA", "BACKPROPAGATION"], DEVICES)
    param_names = ("method", "device")
    version = "2"
    timeout = 300

    def setup(self, method: str, device: str) -> None:
        self.train = _training(method, device)

    def time_cell(self, method: str, device: str) -> None:
        self.train()
