"""How long a cell takes, from what comparable cells took: recorded times, never a guess.

Times of another machine or of another network say nothing, so only cells count that agree in all that the work of one
epoch depends on (`FREE` lists what may differ) and that ran wholly on this kind of device, in as many processes of as
many threads and, on a GPU, with as many workers beside; what is trained, also with CUDA graphs and compiled alike or
without. Where there are none, the time is unknown.
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
    """A kind of device, and how it is used."""

    name: str
    processor: str
    threads: int  # of each process
    sharing: int = 1  # workers of a GPU
    processes: int = 1  # that train a cell together
    cuda_graphs: int | str = 0  # streams, or "branches": one for each branch; 0: none
    compiled: bool | str = False  # True: the modules of the stages; or "steps"


Work = tuple[Device, str]  # and the settings that matter


def device(environment: Mapping[str, Any]) -> Device:
    """What of an environment tells kinds of devices apart (`reproduce.records.provenance.environment`)."""
    chosen = {name: environment[name] for name in Device._field_defaults if name in environment}
    return Device(environment["device"], environment["processor"], environment["threads"], **chosen)


class Speeds:
    """Recorded times of cells: of epochs, or of whole cells that have none."""

    def __init__(self) -> None:
        self._times: defaultdict[Work, list[float]] = defaultdict(list)

    def add(self, cell: Cell, where: Device, seconds: Iterable[float]) -> None:
        """Times of the cell's epochs, or of the whole cell if it has none."""
        self._times[_work(cell, where)].extend(seconds)

    def left(self, cell: Cell, state: State, where: Device) -> float | None:
        """Seconds that the rest of the cell is expected to take; None: nothing comparable is recorded."""
        if state.final:
            return 0.0
        comparable = self._times[_work(cell, where)]
        if not comparable:
            return None
        return statistics.median(comparable) * (state.epochs - state.epochs_done if cell.epochs_expected else 1)


def recorded(records: Iterable[Run[Cell]]) -> Speeds:
    """The times in these records, of cells that ran in one environment from beginning to end."""
    speeds = Speeds()
    for run in records:
        try:
            devices = {device(environment) for environment in run.environments}
            if len(devices) == 1 and run.state.status is not Status.NOT_RUN:
                speeds.add(run.cell, devices.pop(), _seconds(run))
        except (KeyError, TypeError):  # damaged or of another version: no help here, and shown elsewhere
            continue
    return speeds


def _seconds(run: Run[Cell]) -> list[float]:
    if run.cell.epochs_expected:
        return [line["train_seconds"] + line["evaluation_seconds"] for line in run.metrics]
    return [run.result["wall_seconds"]] if "wall_seconds" in run.result else []


def _work(cell: Cell, where: Device) -> Work:
    """What the time of an epoch depends on; what has none is measured once in all of k micro-batches."""
    if not isinstance(cell, TrainedCell):  # nothing of it is recorded or compiled
        where = where._replace(cuda_graphs=0, compiled=False)
    return where, cell.less(*(name for name in FREE if cell.epochs_expected or name != "accumulation"))
