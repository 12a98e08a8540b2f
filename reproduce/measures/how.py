"""How a cell is run, as against what it is: chosen on the command line, and handed on whole to whoever trains it."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.catalogue import DEFAULT_ROOT

__all__ = ["How"]


@dataclass(frozen=True, kw_only=True)
class How:
    """Nothing here changes a result beyond rounding.

    Attributes:
        checkpoint_seconds: a checkpoint is saved this long after the last, besides the one at the end of every epoch.
        data_root: folder of prepared data sets.
        data_workers: threads or processes that decode images; the batches do not depend on it.
        cuda_graphs: steps as CUDA graphs with the stages over so many streams (`petra_core.devices.captured`), where
            they can be recorded; 0: plain steps.
        compiled: whether what stages evaluate is compiled (`petra_core.devices.compiled`).

    """

    checkpoint_seconds: float = 300.0
    data_root: Path = DEFAULT_ROOT
    data_workers: int = 1
    cuda_graphs: int = 0
    compiled: bool = False
