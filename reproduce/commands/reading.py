"""What a plan is made of, read from the records: states, locks, and the speeds recorded on this kind of device."""

from collections.abc import Sequence
from pathlib import Path

from reproduce.cells.kinds import Cell
from reproduce.grids.plans import PLANS
from reproduce.records import provenance, speed
from reproduce.records.locks import holder
from reproduce.records.record import Record, RecordError, State, Status, scan
from reproduce.records.speed import Device, Speeds
from reproduce.running.planning import Item, Plan

__all__ = ["kind_of_device", "read_plan"]


def kind_of_device(name: str, threads: int, *, cuda_graphs: int = 0, compiled: bool = False) -> Device:
    """The kind of device that workers of so many threads will record, and how they will train there."""
    return speed.device(
        {
            "device": provenance.device_name(name),
            "processor": provenance.processor(),
            "threads": threads,
            "cuda_graphs": cuda_graphs,
            "compiled": compiled,
        }
    )


def read_plan(
    cells: Sequence[Cell], scale: str, root: Path, where: Device, workers: int, *, retry_failed: bool = False
) -> Plan:
    """The plan for these cells, from the records under `root`; nothing is changed there.

    Args:
        cells: of one scale.
        scale: its name.
        root: folder of the records.
        where: the device that they would be run on.
        workers: worker processes.
        retry_failed: failed cells are to be gone on with.

    """
    speeds = speed.recorded(scan(root).records)
    items = {cell: _item(cell, root, speeds, where, retry_failed=retry_failed) for cell in cells}
    groups: dict[str, list[Item]] = {}
    for cell, exhibit in _first_exhibits(cells, scale).items():
        groups.setdefault(exhibit, []).append(items[cell])
    return Plan(groups, workers)


def _item(cell: Cell, root: Path, speeds: Speeds, where: Device, *, retry_failed: bool) -> Item:
    record = Record.of(cell, root)
    try:
        state = record.state()
    except RecordError as error:
        return Item(cell, None, problem=str(error))
    if retry_failed and state.status is Status.FAILED:
        state = State(Status.PARTIAL, state.epochs_done, state.epochs)
    return Item(cell, state, speeds.left(cell, state, where), None if state.final else holder(record.path))


def _first_exhibits(cells: Sequence[Cell], scale: str) -> dict[Cell, str]:
    """The exhibit that needs each cell first, in the order of exhibits.

    A cell with another loader or precision than the grid's stands with the cell that it is a variant of.
    """
    exhibits = {_meaning(cell): name for name, plan in reversed(PLANS.items()) for cell in plan(scale)}
    order = {name: place for place, name in enumerate(PLANS)}
    found = {cell: exhibits[_meaning(cell)] for cell in cells}
    return dict(sorted(found.items(), key=lambda entry: order[entry[1]]))


def _meaning(cell: Cell) -> str:
    return str({name: value for name, value in cell.to_dict().items() if name not in ("loader", "precision")})
