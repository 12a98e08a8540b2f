"""The context that a measure is given beside cell and record: where to compute, whom to report to, when to stop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduce.measures.how import How
from reproduce.teams.team import ALONE, Team
from reproduce.teams.trace_file import TraceFile

#: Of weights and images: convolutions are faster with the channels next to one another, on CPU and CUDA.
MEMORY_FORMAT = torch.channels_last


class Stopped(Exception):  # noqa: N818  # an order that was carried out, not an error
    """The work was stopped by request; if it was training, its state is saved."""


class Observer:
    """Receives reports of how a cell gets on; the base class ignores them."""

    title = "an observer"  # what messages call it

    def begin(self) -> None:
        """Note that the cell is ours, and that the work begins."""

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        """Note that `done` of `total` micro-batches have entered; `loss` came out at the last tick, if any did."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Note that an epoch has ended, with these metrics."""

    def notice(self, text: str) -> None:
        """Note something that a person should know."""

    def close(self) -> None:
        """Note that nothing more will come."""


@dataclass(frozen=True)
class Context:
    """The way in which a cell is run, as against what it is: nothing here changes a result beyond rounding."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    how: How = field(default_factory=How)
    #: Asked between micro-batches, by a team at every 16th; what is trained is then saved, and `Stopped` is raised.
    should_stop: Callable[[], bool] = lambda: False
    observer: Observer = field(default_factory=Observer)
    model_file: Path | None = None  # where the trained model's state dict is to be left, if anywhere
    team: Team = ALONE  # the processes that train the cell together
    trace: TraceFile | None = None


def laid_out(inputs: Tensor) -> Tensor:
    """Images [B, C, H, W] in `MEMORY_FORMAT`; text [B, T] as it is."""
    return inputs.contiguous(memory_format=MEMORY_FORMAT) if inputs.dim() == 4 else inputs
