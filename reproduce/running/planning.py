"""Plan a run: list the cells that are done, running or left, and estimate the remaining time.

The grid of the paper has hundreds of cells. The plan groups cells of the same kind, data set, network and width, and
lists each group under the first table or figure that needs it. Times are sums of recorded times
(`reproduce.records.speed`). The time of a cell is unknown if nothing comparable was recorded. A sum with unknown times
is given as "at least" the known part.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.data import manifest
from reproduce.grids.plans import PLANS
from reproduce.records import provenance, speed
from reproduce.records.locks import Holder, holder
from reproduce.records.record import Record, scan
from reproduce.records.results import meaning
from reproduce.records.run import RecordError, State
from reproduce.records.speed import Device, Speeds
from reproduce.running import devices
from reproduce.running.grid_options import GridOptions
from reproduce.text import count, duration

SHOWN_METHODS = 2  # a row with more methods only shows their number
COLUMNS = ("done", "failed", "partial", "locked", "not run", "unreadable")
HEAD = ("data set", "network", "methods", "k", "seeds", "cells", *COLUMNS, "left")


@dataclass(frozen=True)
class Item:
    """A cell in the plan.

    Attributes:
        cell: The cell.
        state: State of its record, or None if the record cannot be read.
        seconds: Estimate of the remaining time, or None if nothing comparable was recorded.
        holder: Process that holds the lock, dead or alive, if there is a lock.
        problem: Reason why the record cannot be read.

    """

    cell: Cell
    state: State | None
    seconds: float | None = None
    holder: Holder | None = None
    problem: str = ""

    @property
    def locked(self) -> bool:
        """Return whether another process is running the cell, as far as this process can tell."""
        return self.holder is not None and not self.holder.gone

    @property
    def column(self) -> str:
        if self.state is None:
            return "unreadable"
        if self.locked:
            return "locked"
        return self.state.status

    @property
    def ours(self) -> bool:
        """Return whether a run would start or resume the cell."""
        return self.column in ("partial", "not run")


Plan = Mapping[str, Sequence[Item]]  # first exhibit that needs the cells -> cells in the order of the run


def read_plan(cells: Sequence[Cell], scale: str, options: GridOptions) -> Plan:
    """Read the plan of a run from the records, without changing them.

    Args:
        cells: Cells to run.
        scale: Scale that the cells belong to.
        options: Options of the run. Its first device is that of the time estimate.

    """
    where = Device(
        provenance.device_name(options.devices[0]),
        provenance.processor(),
        options.threads,
        sharing=devices.sharing(options.devices, options.jobs),
        cuda_graphs=options.cuda_graphs,
        compiled=options.compiled_as_recorded,
    )
    speeds = speed.collect_times(scan(options.root).records)
    # A cell with another loader, precision or timing is listed with the cell of the grid that it is a variant of.
    texts = meaning, lambda cell: cell.text_without("loader", "precision", "timing")
    exhibits = {text(cell): name for name, plan in reversed(PLANS.items()) for cell in plan(scale) for text in texts}
    plan: dict[str, list[Item]] = {name: [] for name in PLANS}
    for cell in cells:
        name = next(exhibits[text(cell)] for text in texts if text(cell) in exhibits)
        plan[name].append(_item(cell, options, speeds, where))
    return {name: items for name, items in plan.items() if items}


def _item(cell: Cell, options: GridOptions, speeds: Speeds, where: Device) -> Item:
    record = Record.for_cell(cell, options.root)
    try:
        state = record.state()
    except RecordError as error:
        return Item(cell, None, problem=str(error))
    if options.retry_failed:
        state = state.to_retry()
    return Item(cell, state, speeds.left(cell, state, where), None if state.final else holder(record.path))


def table(plan: Plan, workers: int) -> str:
    """Format the plan as a table, followed by the estimated time with `workers` workers and by remarks."""
    lines: list[tuple[str, ...]] = [HEAD]
    for exhibit, items in plan.items():
        lines.append((f"{exhibit}:", *[""] * (len(HEAD) - 1)))
        lines += [_row(rows) for rows in _together(items).values()]
    all_items = _items(plan)
    lines.append(("in all", *[""] * 4, *_counts(all_items), _left(all_items)))
    used = [i for i, title in enumerate(HEAD) if title not in COLUMNS or any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines if not line[0].endswith(":")) for i in used]
    text = ["  ".join(line[i].ljust(width) for i, width in zip(used, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, "", _time(all_items, workers), *_remarks(all_items)])


def listing(plan: Plan, workers: int) -> str:
    """Format the plan with one line per cell, under its exhibit."""
    lines = []
    for exhibit, items in plan.items():
        lines.append(f"{exhibit}:")
        lines += [f"  {item.cell.name}: {_words(item)}" for item in items]
    all_items = _items(plan)
    return "\n".join([*lines, "", _time(all_items, workers), *_remarks(all_items)])


def _items(plan: Plan) -> list[Item]:
    return [item for items in plan.values() for item in items]


def _together(items: Iterable[Item]) -> dict[tuple[str, ...], list[Item]]:
    rows: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        settings = item.cell.to_dict()
        key = tuple(str(settings.get(name, "")) for name in ("kind", "dataset", "model", "width"))
        rows.setdefault(key, []).append(item)
    return rows


def _row(items: Sequence[Item]) -> tuple[str, ...]:
    settings = [item.cell.to_dict() for item in items]
    first = settings[0]
    names = list(dict.fromkeys(values["method"] for values in settings))
    listed = ", ".join(name.lower().replace("_", "-") for name in names)
    kind = "" if first["kind"] == "training" else f" ({first['kind']})"
    return (
        f"  {first.get('dataset', '-')}",
        f"{first['model']} w{first['width']}{kind}",
        listed if len(names) <= SHOWN_METHODS else f"{len(names)} methods",
        _numbers(values["accumulation"] for values in settings),
        _numbers(values["seed"] for values in settings),
        *_counts(items),
        _left(items),
    )


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


def _counts(items: Sequence[Item]) -> tuple[str, ...]:
    counts = Counter(item.column for item in items)
    return str(len(items)), *(str(counts[column] or "") for column in COLUMNS)


def _left(items: Sequence[Item]) -> str:
    """Format the estimated time of one worker for the remaining cells."""
    waiting = [item for item in items if item.ours]
    known = [item.seconds for item in waiting if item.seconds is not None]
    if not waiting:
        return "-"
    if not known:
        return "unknown"
    return f"{'at least ' if len(known) < len(waiting) else ''}{duration(sum(known))}"


def _time(items: Sequence[Item], workers: int) -> str:
    waiting = [item for item in items if item.ours]
    if not waiting:
        stuck = [item for item in items if item.state is None or not (item.state.finished or item.locked)]
        return f"Nothing can be run: {_stuck(stuck)}." if stuck else "Nothing is left to run."
    known = [item.seconds for item in waiting if item.seconds is not None]
    unknown = len(waiting) - len(known)
    text = f"Left: {count(len(waiting), 'cell')}"
    if known:
        least = "at least " if unknown else ""
        busy = min(workers, len(waiting))
        share = f", {least}{duration(sum(known) / busy)} with {busy} workers" if busy > 1 else ""
        text += f", {least}{duration(sum(known))} of one worker{share}, at the speeds recorded on this device"
    if unknown:
        text += (
            f"; the time of {unknown if known else 'all'} of them is unknown: no comparable run was recorded on this "
            f"kind of device"
        )
    return f"{text}."


def _stuck(items: Sequence[Item]) -> str:
    unreadable = sum(item.state is None for item in items)
    failed = len(items) - unreadable
    parts = [f"{count(unreadable, 'cell')} unreadable"] * bool(unreadable)
    parts += [f"{count(failed, 'cell')} out of memory; --retry-failed runs such cells again"] * bool(failed)
    return ", ".join(parts)


def _remarks(items: Sequence[Item]) -> list[str]:
    locked = [item for item in items if item.column == "locked"]
    left_behind = [item for item in items if item.holder is not None and not item.locked]
    return [
        *(f"LOCKED {item.cell.slug} by {item.holder}" for item in locked),
        *(f"STALE LOCK on {item.cell.slug}, left by {item.holder}; a run takes it over" for item in left_behind),
        *(f"PROBLEM {item.cell.slug}: {item.problem}" for item in items if item.problem),
    ]


def missing_data(plan: Plan, root: Path) -> list[str]:
    """Return a sentence for each data set that the remaining cells need and that is not prepared under `root`."""
    names = {item.cell.dataset for item in _items(plan) if item.ours and isinstance(item.cell, TrainedCell)}
    folders = [root.resolve() / name for name in sorted(names) if not catalogue.by_name(name).built_in]
    return [
        f"NOT PREPARED: {folder.name} in {folder.parent}; prepare it: {catalogue.how_to_prepare(folder)}"
        for folder in folders
        if not manifest.is_in(folder)
    ]


def _words(item: Item) -> str:
    if item.state is None:
        return "unreadable"
    text = str(item.state)
    if item.column == "locked":
        return f"{text}, locked by {item.holder}"
    if item.ours:
        text += f", {'time unknown' if item.seconds is None else f'{duration(item.seconds)} left'}"
    return text
