"""Define the options of the run of a grid."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.setting import WHERE, setting
from reproduce.measures.run_options import RunOptions
from reproduce.records.record import DEFAULT_ROOT


@dataclass(frozen=True, kw_only=True)
class GridOptions(RunOptions):
    """Options of a grid's run.

    Attributes:
        root: Folder of the records.
        devices: Devices, which are assigned to the workers round-robin. Workers on the same GPU share its memory
            evenly.
        jobs: Number of worker processes, or 0 for one per device.

    """

    root: Path = setting("Folder of records; machines may share it.", WHERE, default=DEFAULT_ROOT, flags=("--records",))
    devices: tuple[str, ...] = setting(
        "cuda for all GPUs, with one cell each; cuda:0,cuda:1 for these two; cpu.",
        WHERE,
        default=("cpu",),
        flags=("--device", "--devices"),
        metavar="DEVICE,…",
        rule="cpu",
    )
    jobs: int = setting(
        "Worker processes; those on one GPU share its memory evenly.",
        WHERE,
        default=0,
        least=1,
        rule="one per GPU; on the CPU cores / threads",
    )

    def device_of(self, worker: int) -> str:
        """Return the name of the device of a worker."""
        return self.devices[worker % len(self.devices)]
