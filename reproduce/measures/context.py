"""What a measure is given beside its cell and its record: where to compute, whom to tell, when to stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduce.measures.how import How
from reproduce.teams.team import ALONE, Team
from reproduce.teams.trace_file import TraceFile

__all__ = ["MEMORY_FORMAT", "Context", "Observer", "Stopped", "laid_out"]

#: Of weights and images: convolutions are faster with the channels next to one another, on CPU and CUDA.
MEMORY_FORMAT = torch.channels_last


class Stopped(Exception):  # noqa: N818  # an order that was carried out, not an error
    """The work was stopped by request; its state is saved."""


class Observer:
    """Is told how a cell gets on; the base class ignores it."""

    def begin(self) -> None:
        """The cell is ours, and the work begins."""

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        """`done` of `total` micro-batches have entered; `loss` came out at the last tick, if any did."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """An epoch has ended, with these metrics."""

    def notice(self, text: str) -> None:
        """Something has happened that a person should know."""

    def close(self) -> None:
        """Nothing more will come."""


@dataclass(frozen=True)
class Context:
    """Where a cell is run, with whom, and who is told; nothing here changes a result beyond rounding.

    Attributes:
        device: to train on.
        how: what was chosen for the run.
        should_stop: asked after every tick; if True, the state is saved and `Stopped` raised.
        observer: is told of progress.
        model_file: where the trained model's state dict is to be left, if anywhere.
        team: the processes that train the cell together.
        trace: writes a trace of the run, if wanted.

    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    how: How = field(default_factory=How)
    should_stop: Callable[[], bool] = lambda: False
    observer: Observer = field(default_factory=Observer)
    model_file: Path | None = None
    team: Team = ALONE
    trace: TraceFile | None = None


def laid_out(inputs: Tensor) -> Tensor:
    """Images [B, C, H, W] in `MEMORY_FORMAT`; text [B, T] as it is."""
    return inputs.contiguous(memory_format=MEMORY_FORMAT) if inputs.dim() == 4 else inputs
