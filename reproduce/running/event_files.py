"""TensorBoard event files, for those who ask for them (tensorboard takes a second to import)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from reproduce.measures.context import Observer


class EventFiles(Observer):
    """Writes every epoch's metrics as scalars.

    Args:
        folder: where to; made if it is not there.

    """

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Write one step."""
        for name, value in metrics.items():
            if name != "epoch" and value is not None:
                self._writer.add_scalar(name, value, metrics["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()
