"""Read all records under a folder once, for the tables.

A record that cannot be read is kept and shown as a problem. It never hides the others.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reproduce.cells.kinds import Cell, ComplexityCell, MemoryCell, StageCostCell, TrainedCell
from reproduce.records import benchmarks as benchmark_records
from reproduce.records import reading, volumes
from reproduce.records.benchmarks import Benchmark
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
from reproduce.records.record import scan
from reproduce.records.run import RecordError, Run, State, Status

_MEDIAN = object_of({"median": amount}, scalar)
#: Values that the tables show of every finished cell of a kind. A record without one would break the report.
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
#: Values that the tables show if they exist.
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


@dataclass(frozen=True)
class Results:
    """Everything under one root."""

    runs: tuple[Run[Cell], ...]  # readable runs, and cells that were not run
    problems: tuple[RecordError, ...]  # damaged or foreign records
    benchmarks: tuple[Benchmark, ...] = ()
    benchmark_problems: tuple[RecordError, ...] = ()
    replaced: tuple[Run[Cell], ...] = ()  # earlier results of cells that were repeated; they count nowhere

    @property
    def begun(self) -> bool:
        return any(run.state.status is not Status.NOT_RUN for run in self.runs)


def read(root: Path, expected: Iterable[Cell] = ()) -> Results:
    """Read all records under `root`. Add `expected` cells without a record as not run."""
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
    # A cell that ran in another precision is not missing, unless the grid requires both.
    in_both = {name for name, count in Counter(map(meaning, expected)).items() if count > 1}
    meant = {meaning(run.cell) for run in runs} - in_both
    absent = [c for c in expected if c not in recorded and c.name not in recorded and meaning(c) not in meant]
    runs += [Run(cell, State(Status.NOT_RUN, epochs=cell.epochs_expected)) for cell in absent]
    benchmarks, unreadable = benchmark_records.read_all(root)
    replaced, unread = volumes.scan(root / volumes.REPLACED, ())
    problems += unread
    return Results(tuple(runs), tuple(problems), benchmarks, unreadable, tuple(replaced))


@cache
def meaning(cell: Cell) -> str:
    """Return the configuration without the settings that depend on the machine."""
    return cell.text_without("loader", "precision")


def check(run: Run[Cell]) -> None:
    """Check that the tables can show a record.

    Raises:
        RecordError: They cannot.

    """
    if problem := reading.problem(run.result, {"data": object_of(DATA)}):  # failures have it, too
        raise run.error("result.json", f"is damaged: {problem}")
    if run.done:
        _check_result(run)
        for part, entries in (("environment.json", run.environments), ("code.json", run.codes)):
            if not entries:
                raise run.error(part, "is missing or empty, so the origin of the result is unknown")
    if isinstance(run.cell, TrainedCell):
        _check_epochs(run)
    _check_origin(run)


def _check_result(run: Run[Cell]) -> None:
    for kind, shape in _SHOWN.items():
        if isinstance(run.cell, kind):
            if lacking := [name for name in shape if name not in run.result]:
                raise run.error("result.json", f"lacks {', '.join(lacking)}: another version wrote it")
            if problem := reading.problem(run.result, _IF_THERE[kind], needed=shape):
                raise run.error("result.json", f"is damaged: {problem}")


def _check_epochs(run: Run[Cell]) -> None:
    """Check the metrics of a training.

    Raises:
        RecordError: The report could not show them.

    """
    for epoch, line in enumerate(run.metrics, start=1):
        if problem := reading.problem(line, _OF_AN_EPOCH, needed=_NEEDED_OF_AN_EPOCH):
            raise run.error("metrics.jsonl", f"is damaged: line {epoch}: {problem}")
        if line["epoch"] != epoch:
            raise run.error("metrics.jsonl", f"is damaged: line {epoch} belongs to epoch {line['epoch']}")
    if run.done and run.metrics and run.result["test_accuracy"] != run.metrics[-1]["test_accuracy"]:
        raise run.error(
            "result.json",
            f"is damaged: test_accuracy is {run.result['test_accuracy']}, but the last line of metrics.jsonl has "
            f"{run.metrics[-1]['test_accuracy']}",
        )


def _check_origin(run: Run[Cell]) -> None:
    """Check the origin of a result.

    Raises:
        RecordError: The section Provenance could not show it.

    """
    for environment in run.environments:
        others = {name: SETTING for name in environment if name not in ENVIRONMENT}
        if problem := reading.problem(environment, others, needed=ENVIRONMENT):
            raise run.error("environment.json", f"is damaged: {problem}")
    for code in run.codes:
        if problem := reading.problem(code, CODE):
            raise run.error("code.json", f"is damaged: {problem}")
