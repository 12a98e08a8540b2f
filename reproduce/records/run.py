"""The content of a record, wherever it is stored: in the folder of a running cell or in a volume."""

import enum
import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from reproduce.cells.catalogue import SOURCE
from reproduce.cells.kinds import Cell
from reproduce.records import reading

SCHEMA = 1  # format of records of cells, of benchmarks and of prepared data sets
DIVERGED, OUT_OF_MEMORY = "diverged", "out of memory"  # the reasons of failures
#: Values that differ between two runs of one cell even if the runs computed the same.
TIMES = ("train_seconds", "evaluation_seconds", "images_per_second", "wall_seconds")
LEFT = "It was not changed; {} and the cell will run again"
UPDATE = "It was not changed; update this clone of the suite to read it"


class Status(enum.StrEnum):
    """The status of a record."""

    NOT_RUN = "not run"
    PARTIAL = "partial"
    DONE = "done"
    FAILED = "failed"


class RecordError(Exception):
    """A record of a cell or of a benchmark cannot be read, or it conflicts with another record of the same cell.

    Attributes:
        path: The file: one of a record's folder, a volume, or that of a benchmark.
        record: The name of the record if `path` is a volume; empty for a file of a folder.

    """

    def __init__(self, path: Path, message: str, fix: str = "", record: str = "") -> None:
        # Messages may contain paths, and terminals and pages show them.
        super().__init__(path, reading.printable(message), reading.printable(fix), record)
        self.path = path
        self.record = record

    @property
    def name(self) -> str:
        """The name of the record."""
        return self.record or self.path.parent.name

    @property
    def place(self) -> str:
        """The path without that of the folder of records."""
        return reading.printable("/".join(self.path.parts[-2 if self.record else -3 :]))

    @property
    def explanation(self) -> str:
        """The problem and the fix, without the path."""
        remove = "delete its lines" if self.record else "move the folder away (or delete it, if you are sure)"
        return f"{self.args[1]}. {self.args[2] or LEFT.format(remove)}"

    def __str__(self) -> str:
        return f"{reading.printable(str(self.path))}: {self.explanation}"


def unreadable(path: Path, error: OSError, record: str = "") -> RecordError:
    """Return the error that the system cannot read a file or folder, whose content may be intact."""
    closed = error.errno in (errno.EACCES, errno.EPERM)
    fix = "Let this user read it (docs/running.md, several users)" if closed else "Check the disk or the file server"
    return RecordError(path, f"cannot be read: {error.strerror}", fix, record)


@dataclass(frozen=True)
class State:
    """Status and progress of a record."""

    status: Status
    epochs_done: int = 0
    epochs: int = 0  # epochs of a finished record (0 for kinds without epochs)
    reason: str = ""  # of a failure: `DIVERGED` or `OUT_OF_MEMORY`
    detail: str = ""  # of a failure: the error message
    #: Values of the result; empty without a result.
    result: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def final(self) -> bool:
        return self.status in (Status.DONE, Status.FAILED)

    @property
    def finished(self) -> bool:
        """Return whether nothing is left to do. Divergence is a result; running out of memory is not."""
        return self.status is Status.DONE or self.reason == DIVERGED

    def to_retry(self) -> "State":
        """Return the state after `Record.retry` if the record failed, else this state."""
        return State(Status.PARTIAL, self.epochs_done, self.epochs) if self.status is Status.FAILED else self

    @property
    def reached(self) -> str:
        """Test accuracy, if there is one, else the progress."""
        accuracy = self.result.get("test_accuracy")
        return str(self) if accuracy is None else f"{accuracy:.2f} %"

    def __str__(self) -> str:
        if self.status is Status.PARTIAL:
            return f"{self.epochs_done} of {self.epochs} epochs" if self.epochs else "begun"
        if self.status is Status.FAILED:
            return f"{self.reason} (epoch {self.epochs_done + 1} of {self.epochs})" if self.epochs else self.reason
        return self.status.value


CellT = TypeVar("CellT", bound=Cell, covariant=True)


@dataclass(frozen=True)
class Run(Generic[CellT]):
    """All that is recorded of one cell.

    Attributes:
        cell: The configuration.
        state: The status, the progress and the result.
        metrics: The finished epochs, in order.
        environments: Machines and versions that the cell ran on, in order.
        codes: Versions of the code, in order; `diff` names one of `patches`.
        patches: Differences to the commits, by file name, byte for byte.
        place: The folder or the volume that the record was read from.

    """

    cell: CellT
    state: State
    metrics: tuple[dict[str, Any], ...] = ()
    environments: tuple[dict[str, Any], ...] = ()
    codes: tuple[dict[str, Any], ...] = ()
    patches: dict[str, bytes] = field(default_factory=dict)
    place: Path = Path()

    @property
    def done(self) -> bool:
        return self.state.status is Status.DONE

    @property
    def result(self) -> Mapping[str, Any]:
        """The values of a finished or failed cell; empty if there are none."""
        return self.state.result

    @property
    def text(self) -> str:
        """SHA-256 of the text that a finished run was trained on; empty for all others."""
        return str(self.result.get("data", {}).get("files", {}).get(SOURCE, ""))

    @property
    def content(self) -> tuple[Any, Any]:
        """Result and metrics without times: equal if two runs computed the same."""
        return _without_times(self.result), [_without_times(line) for line in self.metrics]

    def error(self, part: str, message: str) -> RecordError:
        """Return an error about one part of the record, named by its file in a folder, such as `result.json`."""
        return error_of(self.cell, self.place, part, message)


def hardware(environment: Mapping[str, Any]) -> str:
    """Return the name of the GPU of an environment or, without one, of the processor."""
    device = str(environment.get("device", "cpu"))
    return str(environment.get("processor", "CPU")) if device == "cpu" else device


def error_of(cell: Cell, place: Path, part: str, message: str) -> RecordError:
    """Return an error about one part of the record at `place`, a folder or a volume."""
    if place.suffix == ".jsonl":
        return RecordError(place, f"{part.partition('.')[0]} of {cell.name}: {message}", record=cell.name)
    return RecordError(place / part, message)


def check_schema(schema: Any, path: Path, record: str = "", fix: str = "") -> None:
    """Check the format of a file, or of one `record` of a volume. `fix` is for the error, unless the format is newer.

    Raises:
        RecordError: This version cannot read it.

    """
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        message = f"{record and f'{record} '}has format {schema!r}, but this version reads format {SCHEMA}"
        raise RecordError(path, message, UPDATE if newer else fix, record)


def read_json(file: Path, fix: str = "") -> dict[str, Any]:
    """Return a JSON object of this version of the format. `fix` is for the error; the default is for a cell's folder.

    Raises:
        RecordError: The file is damaged or of another version.

    """
    try:
        values = reading.parse_json(read_bytes(file, fix))
    except ValueError as error:  # not JSON, or not UTF-8
        raise RecordError(file, f"is damaged: {error}", fix) from error
    if not isinstance(values, dict):
        raise RecordError(file, f"is damaged: expected a JSON object, got {type(values).__name__}", fix)
    check_schema(values.get("schema"), file, fix=fix)
    return values


def read_bytes(file: Path, fix: str = "") -> bytes:
    """Return the content of a text file of a record (see `reading.read_file`). `fix` is as for `read_json`.

    Raises:
        RecordError: The file is missing or cannot be read.

    """
    try:
        return reading.read_file(file)
    except FileNotFoundError as error:
        raise RecordError(file, "is missing", fix) from error
    except OSError as error:
        raise unreadable(file, error) from error
    except ValueError as error:
        raise RecordError(file, f"cannot be read: {error}", fix) from error


def state_of(cell: Cell, place: Path, result: Mapping[str, Any] | None, epochs_done: int) -> State:
    """Return the state of a record that exists, and check its result.

    Args:
        cell: The configuration.
        place: The folder or the volume, for errors.
        result: The values of the result, None if there are none yet.
        epochs_done: Number of finished epochs.

    Raises:
        RecordError: The result is of another cell or of unknown form, or epochs are missing.

    """
    epochs = cell.epochs_expected
    if result is None:
        return State(Status.PARTIAL, epochs_done, epochs)
    if result.get("identity") != cell.identity:
        raise error_of(cell, place, "result.json", "is the result of another cell")
    if result.get("status") == Status.FAILED:
        for name in ("reason", "detail"):
            if not isinstance(result.get(name), str):
                message = f"is that of a failed cell, but has the {name} {result.get(name)!r}"
                raise error_of(cell, place, "result.json", message)
        return State(Status.FAILED, epochs_done, epochs, result["reason"], result["detail"], result)
    if result.get("status") != Status.DONE:
        message = f"has the status {result.get('status')!r}, expected 'done' or 'failed'"
        raise error_of(cell, place, "result.json", message)
    if epochs_done != epochs:
        message = f"has {epochs_done} lines, but the finished cell has {epochs} epochs"
        raise error_of(cell, place, "metrics.jsonl", message)
    return State(Status.DONE, epochs_done, epochs, result=result)


def _without_times(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIMES}
