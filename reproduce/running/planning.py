"""The plan of a run: what is done, what is under way and by whom, what is left, and how long that may take.

A list of all cells is no plan: the grid of the paper has hundreds. Here cells are put together that differ in method, k
and seed, under the table or figure that needs them first. Hours are sums of recorded times (`reproduce.records.speed`);
where nothing comparable is recorded they are unknown, and the sum is "at least" the known part.

Everything here is a pure function of cells, states and recorded speeds; who reads them is `reproduce.commands.run`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.records.locks import Holder
from reproduce.records.record import State
from reproduce.words import count, duration

__all__ = ["Item", "Plan", "listing", "table"]

SHOWN_METHODS = 2  # more are counted
COLUMNS = ("done", "failed", "partial", "locked", "not run", "unreadable")
HEAD = ("data set", "network", "methods", "k", "seeds", "cells", *COLUMNS, "left")


@dataclass(frozen=True)
class Item:
    """A cell in the plan.

    Attributes:
        cell: the cell.
        state: how far it is; None if its record cannot be read.
        seconds: that are left of it; None if nothing comparable is recorded.
        holder: who works on it, if anybody does, or left it locked.
        problem: why the record cannot be read.

    """

    cell: Cell
    state: State | None
    seconds: float | None = None
    holder: Holder | None = None
    problem: str = ""

    @property
    def locked(self) -> bool:
        """Whether another process works on it, as far as can be seen."""
        return self.holder is not None and not self.holder.gone

    @property
    def column(self) -> str:
        """In which column of the table it is counted."""
        if self.state is None:
            return "unreadable"
        if self.locked and not self.state.final:
            return "locked"
        return self.state.status.value

    @property
    def ours(self) -> bool:
        """Whether a run would have something to do for it."""
        return self.column in ("partial", "not run")


@dataclass(frozen=True)
class Plan:
    """All cells that are meant.

    Attributes:
        groups: items by the exhibit that needs them first, in the order in which they are run.
        workers: worker processes of the run.

    """

    groups: Mapping[str, Sequence[Item]]
    workers: int = 1

    @property
    def items(self) -> list[Item]:
        """All of them."""
        return [item for items in self.groups.values() for item in items]


def table(plan: Plan) -> str:
    """The plan as a table for people, with what they must know below it."""
    lines: list[tuple[str, ...]] = [HEAD]
    for exhibit, items in plan.groups.items():
        lines.append((f"{exhibit}:", *[""] * (len(HEAD) - 1)))
        lines += [_row(rows) for rows in _together(items).values()]
    lines.append(("in all", *[""] * 4, *_counts(plan.items), _left(plan.items)))
    used = [i for i, title in enumerate(HEAD) if title not in COLUMNS or any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines if not line[0].endswith(":")) for i in used]
    text = ["  ".join(line[i].ljust(width) for i, width in zip(used, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, "", _time(plan), *_remarks(plan.items)])


def listing(plan: Plan) -> str:
    """Every cell on a line of its own, under its exhibit."""
    lines = []
    for exhibit, items in plan.groups.items():
        lines.append(f"{exhibit}:")
        lines += [f"  {item.cell.name}: {_words(item)}" for item in items]
    return "\n".join([*lines, "", _time(plan), *_remarks(plan.items)])


def _together(items: Iterable[Item]) -> dict[tuple[str, ...], list[Item]]:
    """Items by kind, data set and network."""
    rows: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        settings = item.cell.to_dict()
        key = tuple(str(settings.get(name, "")) for name in ("kind", "dataset", "model", "width"))
        rows.setdefault(key, []).append(item)
    return rows


def _row(items: Sequence[Item]) -> tuple[str, ...]:
    settings = [item.cell.to_dict() for item in items]
    first = settings[0]
    names = list(dict.fromkeys(methods.by_name(values["method"]).name for values in settings))
    shown = ", ".join(name.lower().replace("_", "-") for name in names)
    kind = "" if first["kind"] == "training" else f" ({first['kind']})"
    return (
        f"  {first.get('dataset', '-')}",
        f"{first['model']} w{first['width']}{kind}",
        shown if len(names) <= SHOWN_METHODS else f"{len(names)} methods",
        _numbers(values["accumulation"] for values in settings),
        _numbers(values["seed"] for values in settings),
        *_counts(items),
        _left(items),
    )


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


def _counts(items: Sequence[Item]) -> tuple[str, ...]:
    found = Counter(item.column for item in items)
    return str(len(items)), *(str(found[column] or "") for column in COLUMNS)


def _left(items: Sequence[Item]) -> str:
    """Time of one worker for what is to be done."""
    waiting = [item for item in items if item.ours]
    known = [item.seconds for item in waiting if item.seconds is not None]
    if not waiting:
        return "-"
    if not known:
        return "unknown"
    return f"{'at least ' if len(known) < len(waiting) else ''}{duration(sum(known))}"


def _time(plan: Plan) -> str:
    """The line on hours left."""
    waiting = [item for item in plan.items if item.ours]
    if not waiting:
        return "Nothing is left to run."
    known = [item.seconds for item in waiting if item.seconds is not None]
    unknown = len(waiting) - len(known)
    text = f"Left: {count(len(waiting), 'cell')}"
    if known:
        least = "at least " if unknown else ""
        busy = min(plan.workers, len(waiting))
        share = f", {least}{duration(sum(known) / busy)} with {busy} workers" if busy > 1 else ""
        text += f", {least}{duration(sum(known))} of one worker{share}, at the speeds recorded on this device"
    if unknown:
        text += (
            f"; the time of {unknown if known else 'all'} of them is unknown: nothing comparable is recorded on this "
            f"kind of device"
        )
    return f"{text}."


def _remarks(items: Sequence[Item]) -> list[str]:
    """Locks and problems, one a line."""
    locked = [item for item in items if item.column == "locked"]
    left_behind = [item for item in items if item.holder is not None and not item.locked]
    return [
        *(f"LOCKED {item.cell.slug} by {item.holder}" for item in locked),
        *(f"STALE LOCK on {item.cell.slug}, left by {item.holder}; a run takes it over" for item in left_behind),
        *(f"PROBLEM {item.cell.slug}: {item.problem}" for item in items if item.problem),
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
