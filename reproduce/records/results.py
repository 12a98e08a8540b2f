"""All records under a folder, read once, as the tables want them.

Whatever cannot be read is kept as a problem and shown as one; it never hides the others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from reproduce.cells.catalogue import SOURCE
from reproduce.cells.kinds import Cell, ComplexityCell, MemoryCell, StageCostCell, TrainedCell
from reproduce.records import benchmarks as benchmark_records
from reproduce.records import history, reading
from reproduce.records.benchmarks import Benchmark, BenchmarkError
from reproduce.records.history import Tracked
from reproduce.records.reading import (
    CODE,
    DATA,
    ENVIRONMENT,
    SETTING,
    amount,
    dict_of,
    list_of,
    number,
    object_of,
    or_null,
    percent,
    scalar,
    text,
    whole,
)
from reproduce.records.record import Record, RecordError, State, Status, scan

_MEDIAN = object_of({"median": amount}, scalar)
#: What the tables show of every finished cell of a kind. One record without would otherwise take the report down.
_SHOWN: dict[type[Cell], dict[str, reading.Check]] = {
    TrainedCell: {
        **dict.fromkeys(("test_accuracy", "best_test_accuracy"), percent),
        "train_loss": or_null(number),
        "peak_bytes": whole,
    },
    ComplexityCell: {
        "stages": whole,
        "rows": list_of(object_of({"stage": whole}, scalar)),
        "memory": list_of(object_of({"stage": whole, "kind": text, "predicted": amount, "measured": amount})),
        **dict.fromkeys(("stage_flops", "stage_forward_flops", "ticks_per_micro_batch"), amount),
        **dict.fromkeys(("units_overlapped", "units_in_turn"), amount),
        "seconds": dict_of(amount),
    },
    MemoryCell: {
        "stages": whole,
        "rows": list_of(
            object_of({"stage": whole, "kind": text, **dict.fromkeys(("held", "peak", "predicted"), amount)})
        ),
        "process": or_null(object_of({"peak": number}, scalar)),
    },
    StageCostCell: {
        "stages": list_of(
            object_of(
                {
                    "stage": whole,
                    "invertible": reading.truth,
                    **dict.fromkeys(("parameters", "bytes_up", "bytes_down"), amount),
                    **dict.fromkeys(("forward", "backward", "update"), _MEDIAN),
                }
            )
        ),
        "load": list_of(amount),
        "cores": whole,
    },
}
#: What they show where it is there.
_IF_THERE: dict[type[Cell], dict[str, reading.Check]] = {
    **{kind: {"wall_seconds": amount} for kind in _SHOWN},
    TrainedCell: {
        **dict.fromkeys(("train_seconds", "evaluation_seconds", "images_per_second", "test_bits_per_byte"), amount),
        **dict.fromkeys(("parameters", "micro_batches", "best_epoch"), whole),
        "stages": list_of(dict_of(amount)),
        **dict.fromkeys(("staleness", "observed_staleness"), list_of(whole)),
    },
}
_MEASURED = dict_of(list_of(or_null(number)))
_NEEDED_OF_AN_EPOCH = {"epoch": whole, "test_accuracy": percent}
_OF_AN_EPOCH = {
    "train_loss": or_null(number),
    **dict.fromkeys(("train_seconds", "evaluation_seconds", "images_per_second", "peak_bytes"), amount),
    **dict.fromkeys(("learning_rate", "test_bits_per_byte"), number),
    "probes": whole,
    "measured": _MEASURED,
    "measured_at": list_of(object_of({"measured": _MEASURED}, scalar)),
}

CellT = TypeVar("CellT", bound=Cell, covariant=True)


@dataclass(frozen=True)
class Run(Generic[CellT]):
    """One record."""

    cell: CellT
    state: State
    result: dict[str, Any]  # of a finished or failed cell; empty while there is none
    metrics: tuple[dict[str, Any], ...]  # finished epochs in order
    environments: tuple[dict[str, Any], ...]  # machines and versions it ran on, in order
    codes: tuple[dict[str, Any], ...]  # versions of the code, in order
    patches: dict[str, str]  # the differences that `codes` name, by file name

    @property
    def done(self) -> bool:
        return self.state.status is Status.DONE

    @property
    def text(self) -> str:
        """SHA-256 of the text that a finished run was trained on; empty of all others."""
        return str(self.result.get("data", {}).get("files", {}).get(SOURCE, ""))


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
    for record, state in scanned.records:
        try:
            runs.append(read_run(record, state))
        except RecordError as error:
            problems.append(error)
    recorded = {run.cell for run in runs} | {problem.path.parent.name for problem in problems}
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


def read_run(record: Record, state: State) -> Run[Cell]:
    """All of a record. Raises: RecordError: the tables could not show it."""
    result, metrics, environments = record.result() or {}, record.metrics(), record.environments()
    codes = tuple(record.codes())
    if problem := reading.problem(result, {"data": object_of(DATA)}):  # a failure has it, too
        raise RecordError(record.path / "result.json", f"is damaged: {problem}")
    if state.status is Status.DONE:
        _check_result(record, result)
        for name, entries in (("environment.json", environments), ("code.json", codes)):
            if not entries:
                raise RecordError(record.path / name, "is missing or empty: nobody can say where the result is from")
    if isinstance(record.cell, TrainedCell):
        file = record.path / "metrics.jsonl"
        for number, line in enumerate(metrics, start=1):
            if problem := reading.problem(line, _OF_AN_EPOCH, needed=_NEEDED_OF_AN_EPOCH):
                raise RecordError(file, f"is damaged: line {number}: {problem}")
            if line["epoch"] != number:
                raise RecordError(file, f"is damaged: line {number} is of epoch {line['epoch']}")
        if state.status is Status.DONE and metrics and result["test_accuracy"] != metrics[-1]["test_accuracy"]:
            raise RecordError(
                record.path / "result.json",
                f"is damaged: test_accuracy is {result['test_accuracy']}, and the last line of metrics.jsonl has "
                f"{metrics[-1]['test_accuracy']}",
            )
    _check_origin(record, environments, codes)
    patches = {code["diff"]: record.patch(code["diff"]) for code in codes if "diff" in code}
    return Run(record.cell, state, result, tuple(metrics), tuple(environments), codes, patches)


def _check_result(record: Record, result: Mapping[str, Any]) -> None:
    file = record.path / "result.json"
    for kind, shape in _SHOWN.items():
        if isinstance(record.cell, kind):
            if lacking := [name for name in shape if name not in result]:
                raise RecordError(file, f"lacks {', '.join(lacking)}: another version wrote it")
            if problem := reading.problem(result, _IF_THERE[kind], needed=shape):
                raise RecordError(file, f"is damaged: {problem}")


def _check_origin(
    record: Record, environments: Sequence[Mapping[str, Any]], codes: Sequence[Mapping[str, Any]]
) -> None:
    """Check where a result is from. Raises: RecordError: Provenance could not show it."""
    for environment in environments:
        others = {name: SETTING for name in environment if name not in ENVIRONMENT}
        if problem := reading.problem(environment, others, needed=ENVIRONMENT):
            raise RecordError(record.path / "environment.json", f"is damaged: {problem}")
    for code in codes:
        if problem := reading.problem(code, CODE):
            raise RecordError(record.path / "code.json", f"is damaged: {problem}")
