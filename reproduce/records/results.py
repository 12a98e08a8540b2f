"""All records under a folder, read once, as the tables want them.

Whatever cannot be read is kept as a problem and shown as one; it never hides the others.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reproduce.cells.kinds import Cell, ComplexityCell, MemoryCell, StageCostCell, TrainedCell
from reproduce.records import benchmarks as benchmark_records
from reproduce.records import history
from reproduce.records.benchmarks import Benchmark, BenchmarkError
from reproduce.records.history import Tracked
from reproduce.records.record import RecordError, Run, State, Status, scan

__all__ = ["Results", "Run", "check", "meaning", "read"]

#: What the tables show of every finished cell of a kind. One record without would otherwise take the report down.
_SHOWN: dict[type[Cell], tuple[str, ...]] = {
    TrainedCell: ("test_accuracy", "best_test_accuracy", "train_loss", "peak_bytes"),
    ComplexityCell: (
        *("stages", "rows", "memory", "stage_flops", "stage_forward_flops", "seconds"),
        *("ticks_per_micro_batch", "units_overlapped", "units_in_turn"),
    ),
    MemoryCell: ("stages", "rows", "process"),
    StageCostCell: ("stages", "load", "cores"),
}

_OF_AN_ENVIRONMENT = ("device", "processor", "cores", "threads", "python", "platform", "packages")


@dataclass(frozen=True)
class Results:
    """Everything under one root."""

    runs: tuple[Run[Cell], ...]  # that can be read, and the cells that are not run
    problems: tuple[RecordError, ...]  # records that are damaged or foreign
    benchmarks: tuple[Benchmark, ...] = ()
    benchmark_problems: tuple[BenchmarkError, ...] = ()
    history: tuple[Tracked, ...] = ()  # what asv counted at each commit

    @property
    def begun(self) -> bool:
        return any(run.state.status is not Status.NOT_RUN for run in self.runs)


def read(root: Path, expected: Iterable[Cell] = ()) -> Results:
    """All records under `root`, asv's history beside it, and as not run the `expected` cells without a record."""
    scanned = scan(root)
    problems = list(scanned.problems)
    runs: list[Run[Cell]] = []
    for run in scanned.records:
        try:
            check(run)
            runs.append(run)
        except RecordError as error:
            problems.append(error)
    recorded = {run.cell for run in runs} | {problem.name for problem in problems}
    expected = tuple(expected)
    # A cell that ran in another precision is not absent, unless the grid wants it in both.
    in_both = {name for name, count in Counter(map(meaning, expected)).items() if count > 1}
    meant = {meaning(run.cell) for run in runs} - in_both
    absent = [c for c in expected if c not in recorded and c.name not in recorded and meaning(c) not in meant]
    runs += [Run(cell, State(Status.NOT_RUN, epochs=cell.epochs_expected), {}, (), (), (), {}) for cell in absent]
    benchmarks, unreadable = benchmark_records.read_all(root)
    tracked, damaged = history.read(root.parent / history.FOLDER)
    return Results(tuple(runs), tuple(problems), benchmarks, (*unreadable, *damaged), tracked)


@cache
def meaning(cell: Cell) -> str:
    """The configuration without what may be chosen to fit the machine."""
    return cell.less("loader", "precision")


def check(run: Run[Cell]) -> None:
    """Check that the tables can show a record. Raises: RecordError: they cannot."""
    if run.done:
        _check_result(run)
        for part, entries in (("environment.json", run.environments), ("code.json", run.codes)):
            if not entries:
                raise run.error(part, "is missing or empty: nobody can say where the result is from")
    if isinstance(run.cell, TrainedCell):
        for number, line in enumerate(run.metrics, start=1):
            numbers = ("epoch", "test_accuracy")
            _check_numbers(run, "metrics.jsonl", f"line {number}: ", line, numbers, or_null=("train_loss",))
            if line["epoch"] != number:
                raise run.error("metrics.jsonl", f"is damaged: line {number} is of epoch {line['epoch']}")
    for environment in run.environments:
        if lacking := [name for name in _OF_AN_ENVIRONMENT if name not in environment]:
            raise run.error("environment.json", f"is damaged: it lacks {', '.join(lacking)}")


def _check_result(run: Run[Cell]) -> None:
    file, result = "result.json", run.result
    for kind, names in _SHOWN.items():
        lacking = [name for name in names if name not in result] if isinstance(run.cell, kind) else []
        if lacking:
            raise run.error(file, f"lacks {', '.join(lacking)}: another version wrote it")
    if isinstance(run.cell, TrainedCell):
        numbers = ("test_accuracy", "best_test_accuracy", "peak_bytes")
        _check_numbers(run, file, "", result, numbers, or_null=("train_loss",))
    for name in ("rows", "memory"):
        if not isinstance(result.get(name, []), list):
            raise run.error(file, f"is damaged: {name} is {result[name]!r}, expected a list")
    if not isinstance(result.get("data", {}), dict):
        raise run.error(file, f"is damaged: data is {result['data']!r}, expected a JSON object")


def _check_numbers(
    run: Run[Cell],
    part: str,
    where: str,
    values: Mapping[str, Any],
    names: Sequence[str],
    *,
    or_null: Sequence[str] = (),
) -> None:
    for name in (*names, *(name for name in or_null if values.get(name) is not None)):
        value = values.get(name)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise run.error(part, f"is damaged: {where}{name} is {value!r}, expected a number")
