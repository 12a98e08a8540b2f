"""Define the options of a training by hand, which `train` and its processes need."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.kinds import TrainedCell
from reproduce.cells.setting import FILES, PROCESSES, WHERE, setting
from reproduce.commands.options import FILE
from reproduce.measures.run_options import RunOptions


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunOptions):
    """Options of a training.

    Attributes:
        device: Device to train on, such as cuda:0.
        processes: Processes per replica; the result does not change.
        partition: Stages of each process, such as 2,3,5; even: equal numbers; balanced: equal times, measured first.
        timeout_minutes: Timeout for messages from other processes.
        max_restarts: Maximum number of restarts after a process was killed.
        output: Folder for record and model.pt.
        tensorboard: Folder for TensorBoard event files.
        trace: File for a Chrome trace of the first micro-batches after the pipeline has filled.
        trace_micro_batches: Micro-batches in the trace.

    """

    device: str = setting(WHERE, default="cpu")
    processes: int = setting(PROCESSES, default=1, least=1)
    partition: str = setting(PROCESSES, default="even", metavar="SIZES")
    timeout_minutes: float = setting(PROCESSES, default=5.0, minutes=True, metavar="MINUTES", old="--patience")
    max_restarts: int = setting(PROCESSES, default=3, least=0, old="--restarts")
    output: Path | None = setting(FILES, default=None, rule="runs/<name of the cell>")
    tensorboard: Path | None = setting(FILES, default=None)
    trace: Path | None = setting(FILES, default=None, parse=FILE)
    trace_micro_batches: int = setting(FILES, default=16, least=1, rule="{default}")

    def files_of(self, cell: TrainedCell) -> tuple[Path, Path | None, Path | None]:
        """Return the folder of the record, the file of the trace and the folder of event files."""
        return self.output or Path("runs") / cell.name, self.trace, self.tensorboard
