"""How long a cell takes, from what comparable cells took: recorded times, never a guess.

Times of another machine or of another network say nothing, so only cells count that agree in all that the work of one
epoch depends on (`FREE` lists what may differ) and that ran wholly on this kind of device, with as many threads; what
is trained, also with CUDA graphs and compiled alike or without. Of these, those with the same batch size; of cells that
have epochs, else those with any. Where there are none, the time is unknown.
"""

import json
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.records.record import Record, RecordError, State, Status

__all__ = ["FREE", "Device", "Speeds", "alike", "device", "recorded"]

#: Settings on which the time of an epoch does not depend.
FREE = (
    *("scale", "seed", "epochs", "accumulation"),
    *("warmup_epochs", "drops", "drop_factor", "learning_rate", "momentum", "weight_decay"),
)
BATCH = "batch_size"

Device = tuple[str, str, int, int, bool]  # name of the device, of the processor, threads; CUDA graphs, compiled
Work = tuple[Device, str]  # and the settings that matter, but the batch size


def device(environment: Mapping[str, Any]) -> Device:
    """What of an environment tells kinds of devices apart (`reproduce.records.provenance.environment`)."""
    machine = environment["device"], environment["processor"], environment["threads"]
    return *machine, environment.get("cuda_graphs", 0), environment.get("compiled", False)


@dataclass
class Speeds:
    """Recorded times of cells.

    Attributes:
        times: seconds by kind of work and batch size: of epochs, or of whole cells that have none.

    """

    times: dict[Work, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, cell: Cell, where: Device, seconds: Iterable[float]) -> None:
        """Times of the cell's epochs, or of the whole cell if it has none."""
        work, batch = _work(cell, where)
        self.times.setdefault(work, {}).setdefault(batch, []).extend(seconds)

    def left(self, cell: Cell, state: State, where: Device) -> float | None:
        """Seconds that the rest of the cell is expected to take; None: nothing comparable is recorded."""
        if state.final:
            return 0.0
        work, batch = _work(cell, where)
        by_batch = {size: times for size, times in self.times.get(work, {}).items() if times}
        comparable = by_batch.get(batch, [])
        if not comparable and cell.epochs_expected:  # an epoch has the same images in batches of any size
            comparable = [time for times in by_batch.values() for time in times]
        if not comparable:
            return None
        return statistics.median(comparable) * (state.epochs - state.epochs_done if cell.epochs_expected else 1)


def alike(cell: Cell) -> Hashable:
    """Equal for cells that take equally long on equal devices."""
    return *_settings(cell), cell.epochs_expected


def recorded(records: Iterable[tuple[Record, State]]) -> Speeds:
    """The times in these records, of cells that ran in one environment from beginning to end."""
    speeds = Speeds()
    for record, state in records:
        try:
            devices = {device(environment) for environment in record.environments()}
            if len(devices) == 1 and state.status is not Status.NOT_RUN:
                speeds.add(record.cell, devices.pop(), _seconds(record, state))
        except (RecordError, KeyError, TypeError):  # damaged or of another version: no help here, and shown elsewhere
            continue
    return speeds


def _seconds(record: Record, state: State) -> list[float]:
    if record.cell.epochs_expected:
        return [line["train_seconds"] + line["evaluation_seconds"] for line in record.metrics()]
    return [state.result["wall_seconds"]] if "wall_seconds" in state.result else []


def _work(cell: Cell, where: Device) -> tuple[Work, int]:
    settings, batch = _settings(cell)
    if not isinstance(cell, TrainedCell):  # nothing of it is recorded or compiled
        where = *where[:3], 0, False
    return (where, settings), batch


def _settings(cell: Cell) -> tuple[str, int]:
    """Those that the time of an epoch depends on, and the batch size."""
    settings = {name: value for name, value in cell.to_dict().items() if name not in FREE}
    batch = settings.pop(BATCH, 0)
    if not cell.epochs_expected:  # measured once in all of k micro-batches
        settings["accumulation"] = cell.to_dict().get("accumulation")
    return json.dumps(settings, sort_keys=True), batch
