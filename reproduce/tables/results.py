"""All records under a folder, read once, as the tables want them.

Whatever cannot be read is kept as a problem and shown as one; it never hides the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from reproduce import scales
from reproduce.cells import Cell, ComplexityCell, TrainingCell
from reproduce.records import Record, RecordError, State, Status, scan
from reproduce.scales import Scale

CellT = TypeVar("CellT", bound=Cell, covariant=True)


@dataclass(frozen=True)
class Run(Generic[CellT]):
    """One record.

    Attributes:
        cell: its configuration.
        state: how far it is.
        result: the values of a finished or failed cell; empty while there are none.
        metrics: finished epochs in order.
        environments: machines and versions it ran on, in order.
        codes: versions of the code, in order.
        patches: the differences that `codes` name, by file name.

    """

    cell: CellT
    state: State
    result: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    environments: tuple[dict[str, Any], ...]
    codes: tuple[dict[str, Any], ...]
    patches: dict[str, str]

    @property
    def done(self) -> bool:
        """Whether the result is there and good."""
        return self.state.status is Status.DONE


@dataclass(frozen=True)
class Results:
    """Everything under one root.

    Attributes:
        training: runs that trained a network.
        complexity: measurements for Table 1.
        problems: records that are damaged or foreign.

    """

    training: tuple[Run[TrainingCell], ...]
    complexity: tuple[Run[ComplexityCell], ...]
    problems: tuple[RecordError, ...]

    @property
    def runs(self) -> tuple[Run[Cell], ...]:
        """All of them."""
        return (*self.training, *self.complexity)

    @property
    def begun(self) -> bool:
        """Whether there is a record of anything."""
        return any(run.state.status is not Status.NOT_RUN for run in self.runs)


@cache
def grid(name: str) -> Scale:
    """The scale called `name`, made once. Raises: CellError."""
    return scales.by_name(name)


def read(root: Path, expected: Iterable[Cell] = ()) -> Results:
    """All records under `root`; an empty or missing folder gives none.

    Args:
        root: folder of the records.
        expected: cells that should be there; those without a record are given as not run.

    """
    found = scan(root)
    problems = list(found.problems)
    runs: list[Run[Cell]] = []
    for record, state in found.records:
        try:
            runs.append(_run(record, state))
        except RecordError as error:
            problems.append(error)
    there = {run.cell for run in runs} | {problem.path.parent.name for problem in problems}
    absent = [cell for cell in expected if cell not in there and cell.name not in there]
    runs += [Run(cell, State(Status.NOT_RUN, epochs=cell.epochs_expected), {}, (), (), (), {}) for cell in absent]
    return Results(
        tuple(_of(runs, TrainingCell)),
        tuple(_of(runs, ComplexityCell)),
        tuple(problems),
    )


def _run(record: Record, state: State) -> Run[Cell]:
    codes = tuple(record.codes())
    patches = {code["diff"]: _patch(record, code["diff"]) for code in codes if "diff" in code}
    return Run(
        record.cell,
        state,
        record.result() or {},
        tuple(record.metrics()),
        tuple(record.environments()),
        codes,
        patches,
    )


def _patch(record: Record, name: str) -> str:
    file = record.path / name
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError as error:
        raise RecordError(file, "is missing, though code.json names it") from error


def _of(runs: Iterable[Run[Cell]], kind: type[CellT]) -> Iterable[Run[CellT]]:
    return [run for run in runs if isinstance(run.cell, kind)]  # type: ignore[misc]  # narrowed by its cell
