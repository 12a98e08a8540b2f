"""The end of a run in a few lines: accuracies by method and k, and loudly whatever is not as it should be."""

from collections.abc import Iterable
from pathlib import Path

from petra_core import methods
from reproduce.cells import Cell, TrainingCell
from reproduce.records import Record, State, Status
from reproduce.runner import Outcome
from reproduce.scales import Scale

Key = tuple[str, str]  # model, method


def table(outcome: Outcome, root: Path) -> str:
    """Mean test accuracy in percent after the last epoch, by network and method (rows) and k (columns).

    A cell of the table that lacks runs says so: `95.3 (1 of 2)`, or the state of a run if none is done.
    """
    training = [(cell, state) for cell, state in outcome.states.items() if isinstance(cell, TrainingCell)]
    columns = sorted({cell.accumulation for cell, _ in training})
    groups: dict[Key, dict[int, list[tuple[TrainingCell, State]]]] = {}
    for cell, state in training:
        row = groups.setdefault((cell.model, cell.method), {})
        row.setdefault(cell.accumulation, []).append((cell, state))
    lines = [["network", "method", *(f"k = {k}" for k in columns)]]
    lines += [
        [model, methods.by_name(method).title, *(_entry(row.get(k, []), root) for k in columns)]
        for (model, method), row in groups.items()
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def shortfalls(scale: Scale, outcome: Outcome, root: Path) -> list[str]:
    """The cells that do not fulfil what the scale expects of them, each with its accuracy or failure."""
    found = []
    for cell, state in outcome.states.items():
        accuracy = _accuracy(cell, state, root)
        if scale.falls_short(cell, state, accuracy):
            found.append(f"{cell.slug}: {state if accuracy is None else f'{accuracy:.2f} %'}")
    return found


def _entry(runs: Iterable[tuple[TrainingCell, State]], root: Path) -> str:
    runs = list(runs)
    accuracies = [a for cell, state in runs if (a := _accuracy(cell, state, root)) is not None]
    if not accuracies:
        return str(runs[0][1]) if runs else ""
    missing = "" if len(accuracies) == len(runs) else f" ({len(accuracies)} of {len(runs)})"
    return f"{sum(accuracies) / len(accuracies):.1f}{missing}"


def _accuracy(cell: Cell, state: State, root: Path) -> float | None:
    if not isinstance(cell, TrainingCell) or state.status is not Status.DONE:
        return None
    result = Record.of(cell, root).result()
    return None if result is None else float(result["test_accuracy"])
