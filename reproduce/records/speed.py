"""Predict the duration of a cell from recorded times of comparable cells.

Times of another machine or another network are not comparable. So only cells count that agree in every setting that the
time of an epoch depends on (`FREE` lists those that may differ). They must have run completely on this kind of device,
with the same number of processes, threads and, on a GPU, workers. Trained cells must also agree in CUDA graphs and
compilation. Without such cells, the time is unknown.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.records.run import Run, State, Status

#: Settings on which the time of an epoch does not depend.
FREE = (
    *("scale", "seed", "epochs", "accumulation"),
    *("warmup_epochs", "drops", "drop_factor", "learning_rate", "momentum", "weight_decay"),
)


class Device(NamedTuple):
    """A kind of device, and how it is used.

    Attributes:
        name: Name of the device.
        processor: Name of the CPU.
        threads: Number of threads per process.
        sharing: Number of workers per GPU.
        processes: Number of processes that train a cell together.
        cuda_graphs: Number of streams, or "branches" for one per branch; 0 for none.
        compiled: True for the modules of the stages, "steps" for recorded steps, else False.

    """

    name: str
    processor: str
    threads: int
    sharing: int = 1
    processes: int = 1
    cuda_graphs: int | str = 0
    compiled: bool | str = False


Work = tuple[Device, str]  # the device, and the settings that matter


def device(environment: Mapping[str, Any]) -> Device:
    """Return the kind of device of an environment (`reproduce.records.provenance.environment`)."""
    chosen = {name: environment[name] for name in Device._field_defaults if name in environment}
    return Device(environment["device"], environment["processor"], environment["threads"], **chosen)


class Speeds:
    """Recorded times of cells: of epochs, or of whole cells without epochs."""

    def __init__(self) -> None:
        self._times: defaultdict[Work, list[float]] = defaultdict(list)

    def add(self, cell: Cell, where: Device, seconds: Iterable[float]) -> None:
        """Add times of the cell's epochs, or of the whole cell if it has none."""
        self._times[_work(cell, where)].extend(seconds)

    def left(self, cell: Cell, state: State, where: Device) -> float | None:
        """Return the expected seconds of the rest of the cell, or None if nothing comparable is recorded."""
        if state.final:
            return 0.0
        comparable = self._times[_work(cell, where)]
        if not comparable:
            return None
        return statistics.median(comparable) * (state.epochs - state.epochs_done if cell.epochs_expected else 1)


def collect_times(records: Iterable[Run[Cell]]) -> Speeds:
    """Collect the times of these records, of cells that ran in one environment from beginning to end."""
    speeds = Speeds()
    for run in records:
        try:
            devices = {device(environment) for environment in run.environments}
            if len(devices) == 1 and run.state.status is not Status.NOT_RUN:
                speeds.add(run.cell, devices.pop(), _seconds(run))
        except (KeyError, TypeError):  # damaged or of another version: not usable here, and reported elsewhere
            continue
    return speeds


def _seconds(run: Run[Cell]) -> list[float]:
    if run.cell.epochs_expected:
        return [line["train_seconds"] + line["evaluation_seconds"] for line in run.metrics]
    return [run.result["wall_seconds"]] if "wall_seconds" in run.result else []


def _work(cell: Cell, where: Device) -> Work:
    """Return the device and the settings that the time of an epoch depends on, or that of a cell without epochs."""
    if not isinstance(cell, TrainedCell):  # measurements do not record or compile steps
        where = where._replace(cuda_graphs=0, compiled=False)
    return where, cell.text_without(*(name for name in FREE if cell.epochs_expected or name != "accumulation"))
