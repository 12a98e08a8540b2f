"""Define the options of the run of a grid."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.setting import HOW, WHERE, setting
from reproduce.measures.run_options import RunOptions
from reproduce.records.record import DEFAULT_ROOT


@dataclass(frozen=True, kw_only=True)
class GridOptions(RunOptions):
    """Options of a grid's run. The devices are assigned to the workers round-robin.

    Attributes:
        root: Folder of records; machines may share it.
        devices: cuda for all GPUs, with one cell each; cuda:0,cuda:1 for these two; cpu.
        jobs: Worker processes; those on one GPU share its memory evenly.
        dry_run: Only show the plan: done and locked cells, and the remaining hours from recorded speeds.
        verbose: With --dry-run: one line per cell.

    """

    root: Path = setting(WHERE, default=DEFAULT_ROOT, flags=("--records",))
    devices: tuple[str, ...] = setting(
        WHERE, default=("cpu",), flags=("--device", "--devices"), metavar="DEVICE,…", rule="cpu"
    )
    jobs: int = setting(WHERE, default=0, least=1, rule="one per GPU; on the CPU cores / threads")
    dry_run: bool = setting(HOW, default=False)
    verbose: bool = setting(HOW, default=False, flags=("-v", "--verbose"))

    def device_of(self, worker: int) -> str:
        """Return the name of the device of a worker."""
        return self.devices[worker % len(self.devices)]
