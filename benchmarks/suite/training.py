"""Seconds of a whole training, as `reproduce train` and the grids do it.

What the benchmarks of ticks leave out is in here: batches, deterministic kernels, losses looked at, evaluation, record.
"""

import tempfile
from pathlib import Path
from typing import Any

from .setting import DEVICES, open_device


class Training:
    """The smoke scale's RevNet-18 on digits for two epochs, from nothing to the result."""

    params = (["PETRA", "BACKPROPAGATION"], DEVICES)
    param_names = ("method", "device")
    version = "2"
    timeout = 300

    def setup(self, method: str, device: str) -> None:
        self.device = open_device(device)
        # Not at the top: asv imports every module to find benchmarks, and these imports take seconds.
        from petra_core import methods
        from reproduce.measures.context import Context
        from reproduce.records.record import Record
        from reproduce.running.execution import execute

        arguments: tuple[Any, ...] = "revnet18", methods.by_name(method), 4
        try:  # of an older commit, whose `recipes` knows nothing of this scale
            from reproduce.grids import smoke

            cell = smoke.digits_cell(*arguments, epochs=2, drops=(1,))
        except ImportError:
            from reproduce.grids import recipes

            cell = recipes.cell("smoke", *arguments, epochs=2, drops=(1,))
        self.execute, self.record, self.context = execute, lambda at: Record(at, cell), Context(device=self.device)
        self._train()  # data and kernels are loaded once

    def time_cell(self, method: str, device: str) -> None:
        self._train()

    def _train(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.execute(self.record(Path(folder)), self.context)
