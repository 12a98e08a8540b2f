"""Records: a finished cell is a folder of plain text, and everything else means "go on" or "run".

A table of results that is appended to by whoever finishes can be neither resumed nor trusted: it cannot tell a
finished run from half of one, nor what produced it. Here every cell has a folder of its own,

    <root>/<scale>/<slug>-<hash of the configuration>/
        config.json        the configuration, every default written out; its hash is the cell's identity
        environment.json   versions, device, threads, determinism flags: one entry for every environment it ran in
        code.json          the commit, and diff-<n>.patch if the tree was not clean: one entry likewise
        metrics.jsonl      one line an epoch
        result.json        written last, atomically: a valid one means done
        checkpoint.pt      only while there is no result; of several processes `checkpoint/`
        record.lock        held by the process that works on the cell

A file that cannot be understood is named and left alone: it may be somebody's result.
"""

import enum
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce.cells.kinds import Cell, CellError, from_dict
from reproduce.records import locks, reading
from reproduce.records.locks import Hold, hold
from reproduce.records.provenance import patch_bytes
from reproduce.records.reading import parse_json
from reproduce.records.storage import append_line, write_atomically, write_json
from reproduce.words import some

SCHEMA = 1
DEFAULT_ROOT = Path("reports") / "records"
DIVERGED, OUT_OF_MEMORY = "diverged", "out of memory"  # the reasons of failures
PATCH = re.compile(r"diff-[1-9]\d{0,5}\.patch")  # what code.json may name: a file of the record and no other
FILES = re.compile(r"(config|environment|code|result)\.json|metrics\.jsonl|checkpoint\.pt|" + PATCH.pattern)
LEFTOVER = re.compile(rf"(({FILES.pattern})\.\d+|record\.lease\.[^.]+)\.tmp")  # of a write that was killed
UPDATE = "It was left as it is; update this clone of the suite to read it"


class Status(enum.Enum):
    """What a folder says about its cell."""

    NOT_RUN = "not run"
    PARTIAL = "partial"
    DONE = "done"
    FAILED = "failed"


class RecordError(Exception):
    """A file of a record is damaged, or of another version or cell."""

    def __init__(self, path: Path, message: str, fix: str = "") -> None:
        super().__init__(path, message, fix)  # as it is pickled
        self.path = path

    def __str__(self) -> str:
        fix = self.args[2] or (
            "It was left as it is; move the folder away (or delete it, if you are sure) and the cell will run again"
        )
        return f"{self.path}: {self.args[1]}. {fix}"


@dataclass(frozen=True)
class State:
    """Status of a record, and how far it is."""

    status: Status
    epochs_done: int = 0
    epochs: int = 0  # that a finished record has (0 for kinds without epochs)
    reason: str = ""  # of a failure: `DIVERGED` or `OUT_OF_MEMORY`
    detail: str = ""  # of a failure: the error's words
    #: The values in result.json, so that nobody has to read it again; empty if there is none.
    result: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def final(self) -> bool:
        return self.status in (Status.DONE, Status.FAILED)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: to diverge is a result; to run out of memory is none, elsewhere is more."""
        return self.status is Status.DONE or self.reason == DIVERGED

    @property
    def reached(self) -> str:
        """The test accuracy, where there is one, else how far it is."""
        accuracy = self.result.get("test_accuracy")
        return str(self) if accuracy is None else f"{accuracy:.2f} %"

    def __str__(self) -> str:
        if self.status is Status.PARTIAL:
            return f"{self.epochs_done} of {self.epochs} epochs" if self.epochs else "begun"
        if self.status is Status.FAILED:
            return f"{self.reason} (epoch {self.epochs_done + 1} of {self.epochs})" if self.epochs else self.reason
        return str(self.status.value)


class Record:
    """The folder of one cell; it need not exist."""

    def __init__(self, path: Path, cell: Cell) -> None:
        self.path = path
        self.cell = cell
        self.about: dict[str, Any] = {}  # what a result says besides its values, a failure too: such as of which data
        self._hold: Hold | None = None

    @classmethod
    def of(cls, cell: Cell, root: Path = DEFAULT_ROOT) -> "Record":
        """The record of `cell` under `root`, where grids keep it."""
        return cls(root / cell.scale / cell.name, cell)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """The record in an existing folder. Raises: RecordError: its config.json is missing, damaged or foreign."""
        file = path / "config.json"
        values = _read_json(file)
        try:
            cell = from_dict(values.get("cell", {}))
        except CellError as error:
            raise RecordError(file, f"holds no cell that this version knows ({error})") from error
        if values.get("identity") != cell.identity:
            raise RecordError(file, "the identity in it is not that of its configuration: it was edited by hand")
        return cls(path, cell)

    @property
    def checkpoint(self) -> Path:
        """Where the cell's checkpoint is while it is unfinished."""
        return self.path / "checkpoint.pt"

    @property
    def shards(self) -> Path:
        """The folder that is there instead if several processes train the cell."""
        return self.path / "checkpoint"

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint to go on from, of one process or of several."""
        return self.checkpoint.exists() or self.shards.exists()

    @property
    def has_result(self) -> bool:
        """Whether there is a result, good or bad or damaged: it is not read."""
        return (self.path / "result.json").exists()

    @contextmanager
    def lock(self) -> Iterator[Hold]:
        """Hold the folder against other processes; it is free again when this process ends, however it ends.

        While it is held, everything that writes raises LockLostError if another machine has taken the cell over.

        Raises:
            LockedError: another process holds it.
            StorageFullError: there was no room for the lock.

        """
        with hold(self.path) as self._hold:
            try:
                yield self._hold
            finally:
                self._hold = None

    def check_held(self) -> None:
        """Raise LockLostError if this record was locked and another machine has taken it over."""
        if self._hold is not None:
            self._hold.check()

    # --- reading

    def state(self) -> State:
        """What the folder says. Raises: RecordError: a file in it is damaged, or of another version or cell."""
        if not (self.path / "config.json").exists():
            if (self.path / "result.json").exists():
                raise RecordError(self.path / "result.json", "there is a result here but no config.json to say of what")
            return State(Status.NOT_RUN, epochs=self.cell.epochs_expected)
        self._check_config()
        result = self.result()  # before the metrics: whoever finishes the cell now writes it after their last line
        epochs, done = self.cell.epochs_expected, len(self.metrics())
        if result is None:
            return State(Status.PARTIAL, done, epochs)
        if result["status"] == Status.FAILED.value:
            return State(Status.FAILED, done, epochs, result["reason"], result["detail"], result)
        if done != epochs:
            raise RecordError(
                self.path / "metrics.jsonl", f"has {done} lines, but the finished cell has {epochs} epochs"
            )
        return State(Status.DONE, done, epochs, result=result)

    def result(self) -> dict[str, Any] | None:
        """The values in result.json; None if there is none yet. Raises: RecordError."""
        file = self.path / "result.json"
        if not file.exists():
            return None
        values = _read_json(file)
        if values.get("identity") != self.cell.identity:
            raise RecordError(file, "is the result of another cell")
        if values.get("status") not in (Status.DONE.value, Status.FAILED.value):
            raise RecordError(file, f"has the status {values.get('status')!r}, expected 'done' or 'failed'")
        if values["status"] == Status.FAILED.value:
            for name in ("reason", "detail"):
                if not isinstance(values.get(name), str):
                    raise RecordError(file, f"is that of a failed cell and has the {name} {values.get(name)!r}")
        return values

    def metrics(self) -> list[dict[str, Any]]:
        """The finished epochs, in order; a last line that a stop cut off is not one. Raises: RecordError."""
        file = self.path / "metrics.jsonl"
        if not os.path.lexists(file):
            return []
        text = read(file).decode("utf-8", "replace")
        lines = text.split("\n")[:-1]  # what follows the last newline is torn, or nothing
        metrics = []
        for number, line in enumerate(lines, start=1):
            try:
                values = parse_json(line)
            except ValueError as error:
                raise RecordError(file, f"line {number} is damaged: {error}") from error
            if not isinstance(values, dict):
                raise RecordError(file, f"line {number} is damaged: expected a JSON object, got {line[:40]}")
            metrics.append(values)
        return metrics

    def environments(self) -> list[dict[str, Any]]:
        """The environments it ran in, in order. Raises: RecordError."""
        return self._entries("environment.json")

    def codes(self) -> list[dict[str, Any]]:
        """The versions of the code that ran, in order; `diff` names a patch beside it, if any. Raises: RecordError."""
        return self._entries("code.json")

    def patch(self, name: str) -> str:
        """Return the difference to a commit that one of `codes` names.

        Raises:
            RecordError: there is no such file, or the name is not that of a patch of this record.

        """
        return self._patch_bytes(name).decode("utf-8", "replace")

    def _patch_bytes(self, name: str) -> bytes:
        if not isinstance(name, str) or not PATCH.fullmatch(name):
            file = self.path / "code.json"
            raise RecordError(file, f"is damaged: diff is {str(name)[:80]!r}, expected a name such as diff-1.patch")
        try:
            return read(self.path / name)
        except RecordError as error:
            raise RecordError(self.path / name, f"is named by code.json and {error.args[1]}") from error

    # --- writing, under the lock

    def begin(self, environment: Mapping[str, Any], code: Mapping[str, Any], patch: str = "") -> None:
        """Write what is known before the work begins; on going on, add environment and code if they are others.

        Raises:
            RecordError: the folder holds something else.
            StorageFullError: there was no room.

        """
        self.check_held()
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "config.json").exists():
            self._check_config()
            for leftover in self.path.glob("*.tmp"):  # of a process that was killed while it wrote
                if LEFTOVER.fullmatch(leftover.name):
                    leftover.unlink()
        else:
            check_free(self.path)
            values = {"schema": SCHEMA, "identity": self.cell.identity, "cell": self.cell.to_dict()}
            write_json(self.path / "config.json", values)
        self._add("environment.json", dict(environment))
        self._add_code(dict(code), patch)

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add the line of one epoch. Raises: StorageFullError."""
        self.check_held()
        append_line(self.path / "metrics.jsonl", json.dumps(dict(metrics), allow_nan=False))

    def keep_metrics(self, count: int) -> None:
        """Cut the metrics to the first `count` epochs: those that a checkpoint knows of.

        Raises: RecordError: there are fewer.
        """
        metrics, file = self.metrics(), self.path / "metrics.jsonl"
        if len(metrics) < count:
            raise RecordError(file, f"has {len(metrics)} lines, but the checkpoint was saved after {count} epochs")
        self.check_held()
        text = "".join(json.dumps(line) + "\n" for line in metrics[:count])
        if file.exists() and file.read_bytes() != text.encode():
            write_atomically(file, text.encode())

    def finish(self, values: Mapping[str, Any]) -> None:
        """Write the result, which makes the cell done. Raises: StorageFullError."""
        self._write_result(Status.DONE, values)
        self.remove_checkpoint()

    def fail(self, reason: str, detail: str, values: Mapping[str, Any] | None = None) -> None:
        """Write that the cell cannot be finished, and why; the last good checkpoint stays. Raises: StorageFullError."""
        self._write_result(Status.FAILED, {"reason": reason, "detail": detail, **(values or {})})

    def remove_checkpoint(self) -> None:
        """Forget what only a resume needs."""
        self.checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.shards, ignore_errors=True)

    def retry(self) -> None:
        """Forget a failure, so that the cell goes on from its last good checkpoint.

        Raises: ValueError: the cell has not failed.
        """
        if self.state().status is not Status.FAILED:
            raise ValueError(f"{self.path} is not a failed cell: {self.state()}")
        (self.path / "result.json").unlink()

    def _write_result(self, status: Status, values: Mapping[str, Any]) -> None:
        self.check_held()
        head = {"schema": SCHEMA, "identity": self.cell.identity, "kind": self.cell.kind, "status": status.value}
        write_json(self.path / "result.json", {**head, **values, **self.about})

    def _check_config(self) -> None:
        recorded = Record.load(self.path).cell
        if recorded != self.cell:
            mine, theirs = self.cell.to_dict(), recorded.to_dict()
            names = {**mine, **theirs}
            other = [f"{n} {theirs.get(n)!r}, not {mine.get(n)!r}" for n in names if theirs.get(n) != mine.get(n)]
            raise RecordError(self.path / "config.json", f"is the record of another cell: {'; '.join(other)}")

    def _entries(self, name: str) -> list[dict[str, Any]]:
        file = self.path / name
        if not file.exists():
            return []
        entries = _read_json(file).get("entries")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise RecordError(file, "has no list of entries, each a JSON object")
        return entries

    def _add(self, name: str, entry: dict[str, Any]) -> None:
        entries = self._entries(name)
        if entry not in entries:
            write_json(self.path / name, {"schema": SCHEMA, "entries": [*entries, entry]})

    def _add_code(self, entry: dict[str, Any], patch: str) -> None:
        entries = self.codes()
        if patch:
            data = patch_bytes(patch)
            for known in entries:
                if "diff" in known and self._patch_bytes(known["diff"]) == data:
                    entry["diff"] = known["diff"]
            if "diff" not in entry:
                entry["diff"] = f"diff-{len(entries) + 1}.patch"
                write_atomically(self.path / entry["diff"], data)
        self._add("code.json", entry)


def check_free(folder: Path) -> None:
    """Raise RecordError if a new record cannot begin in `folder`: it is no folder, or has files of somebody else."""
    fix = "It was left as it is; choose another folder, or a new one in it"
    if os.path.lexists(folder) and not folder.is_dir():
        raise RecordError(folder, "is not a folder", fix)
    if not folder.is_dir() or (folder / "config.json").exists():
        return
    # Other folders do no harm; a record has none but that of a checkpoint, which it removes in the end.
    names = sorted(file.name for file in folder.iterdir() if file.name == "checkpoint" or not file.is_dir())
    foreign = [name for name in names if name not in locks.FILES and not LEFTOVER.fullmatch(name)]
    if foreign:
        raise RecordError(folder, f"is not a record (it has no config.json), and contains {some(foreign)}", fix)


@dataclass(frozen=True)
class Scan:
    """All that a folder of records holds."""

    records: tuple[tuple[Record, State], ...]  # that can be read, done or not, in order of scale and name
    problems: tuple[RecordError, ...]  # the others


def scan(root: Path = DEFAULT_ROOT) -> Scan:
    """Read every record under `root`; one that is damaged does not hide the others.

    Of two of one cell, such as a copy for safety, the one in the cell's own place counts, the other is a problem.
    """
    readable: list[tuple[Record, State]] = []
    problems: list[RecordError] = []
    folders, unreadable = _folders(root)
    problems += unreadable
    for folder in folders:
        try:
            record = Record.load(folder)
            readable.append((record, record.state()))
        except RecordError as error:
            problems.append(error)
    records: dict[Cell, tuple[Record, State]] = {}
    for record, state in sorted(readable, key=lambda of: of[0].path != Record.of(of[0].cell, root).path):
        counts, _ = records.setdefault(record.cell, (record, state))
        if counts is not record:
            what = f"is a second record of its cell, beside {counts.path}; move one of them away"
            problems.append(RecordError(record.path / "config.json", what))
    return Scan(tuple(sorted(records.values(), key=lambda of: of[0].path)), tuple(problems))


def _folders(root: Path) -> tuple[list[Path], list[RecordError]]:
    """The folders of records under `root`, and those that cannot be looked into, which `glob` would leave out."""
    found: list[Path] = []
    problems: list[RecordError] = []
    for scale in _listing(root, problems):
        if scale.is_dir() and not scale.name.startswith("."):
            for folder in _listing(Path(scale.path), problems):
                try:
                    names = {entry.name for entry in os.scandir(folder.path)} if folder.is_dir() else set()
                except OSError as error:
                    problems.append(RecordError(Path(folder.path), f"cannot be read: {error.strerror}"))
                    continue
                if names & {"config.json", "result.json"}:
                    found.append(Path(folder.path))
    return sorted(found), problems


def _listing(folder: Path, problems: list[RecordError]) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(RecordError(folder, f"cannot be read: {error.strerror}"))
        return []


def _read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object of this version of the format. Raises: RecordError."""
    try:
        values = parse_json(read(file))
    except ValueError as error:  # not JSON, or not UTF-8
        raise RecordError(file, f"is damaged: {error}") from error
    if not isinstance(values, dict):
        raise RecordError(file, f"is damaged: expected a JSON object, got {type(values).__name__}")
    if (schema := values.get("schema")) != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        raise RecordError(file, f"is of format {schema!r}, this version reads format {SCHEMA}", UPDATE if newer else "")
    return values


def read(file: Path) -> bytes:
    """Return the content of a text file of a record, see `reading.read_file`. Raises: RecordError."""
    try:
        return reading.read_file(file)
    except FileNotFoundError as error:
        raise RecordError(file, "is missing") from error
    except OSError as error:
        raise RecordError(file, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(file, f"cannot be read: {error}") from error
