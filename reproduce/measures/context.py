"""Define the context of a measure: device, options, observer, stop request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduce.distributed.group import SINGLE_PROCESS, Group
from reproduce.distributed.trace_file import TraceFile
from reproduce.measures.run_options import RunOptions

#: Memory format of weights and images. Convolutions are faster in it, on CPU and CUDA.
MEMORY_FORMAT = torch.channels_last


class Stopped(Exception):  # noqa: N818  # a completed request, not an error
    """The work was stopped by request. If it was training, its state was saved."""


class Observer:
    """Receive reports about the progress of a cell. The base class ignores them.

    Attributes:
        title: Name of the observer in messages.

    """

    title = "an observer"

    def begin(self) -> None:
        """Report that the cell is locked and the work begins."""

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        """Report that `done` of `total` micro-batches have entered. `loss` came out at the last tick, if any did."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Report the metrics of a finished epoch."""

    def notice(self, text: str) -> None:
        """Report a notice for the user."""

    def close(self) -> None:
        """Report that no more reports follow."""


@dataclass(frozen=True)
class Context:
    """Options and resources for running a cell. They change results only by rounding.

    Attributes:
        device: Device to compute on.
        options: Options of the run.
        should_stop: Function that is called between micro-batches. Several processes obey it only at every 16th. If it
            returns true, training is saved and `Stopped` is raised.
        observer: Receiver of progress reports.
        model_file: File for the trained model's state dict, if it is wanted.
        group: Processes that train the cell together.
        trace: Trace to write, if it is wanted.

    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    options: RunOptions = field(default_factory=RunOptions)
    should_stop: Callable[[], bool] = lambda: False
    observer: Observer = field(default_factory=Observer)
    model_file: Path | None = None
    group: Group = SINGLE_PROCESS
    trace: TraceFile | None = None


def to_memory_format(inputs: Tensor) -> Tensor:
    """Convert images [B, C, H, W] to `MEMORY_FORMAT`. Return text [B, T] unchanged."""
    return inputs.contiguous(memory_format=MEMORY_FORMAT) if inputs.dim() == 4 else inputs
