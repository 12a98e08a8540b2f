"""Records: each cell has a folder while it runs, and lines in a volume once it is finished.

A table of results to which every finished run is appended can neither be resumed nor trusted: it does not distinguish a
finished run from half of one, nor does it contain what produced the run. Here a cell that runs has a folder,

    <root>/live/<slug>-<first digits of the identity>/
        config.json        the configuration, every default written out; its hash is the cell's identity
        environment.json   versions, device, threads, determinism flags: one entry for every environment it ran in
        code.json          the commit, and diff-<n>.patch if the tree was not clean: one entry for every version
        metrics.jsonl      one line for each epoch
        result.json        the result or the failure; written last, atomically
        checkpoint.pt      until the cell is done; of several processes `checkpoint/`
        record.lock        held by the process that works on the cell
        record.lease       names that process for other machines

A finished record is then appended to its volume (`reproduce.records.volumes`), and the folder is removed. A kill
between the two leaves both: readers see one record, and the next run of the cell removes the folder. A record that ran
out of memory is not finished and stays a folder; so does the checkpoint of a diverged run. `train` leaves a folder
of the same files, without a volume.

A file that cannot be read is reported and left unchanged: it may be a result.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduce.cells.kinds import Cell, CellError, from_dict
from reproduce.records import locks, volumes
from reproduce.records.locks import Hold, LockedError, LockLostError, hold
from reproduce.records.reading import parse_json
from reproduce.records.run import SCHEMA, RecordError, Run, State, Status, read_bytes, read_json, state_of, unreadable
from reproduce.records.storage import append_line, write_atomically, write_json
from reproduce.text import some

DEFAULT_ROOT = Path("reports") / "records"
PATCH = re.compile(r"diff-[1-9]\d{0,5}\.patch")  # what code.json may name: a file of the record and no other
FILES = re.compile(r"(config|environment|code|result)\.json|metrics\.jsonl|checkpoint\.pt|" + PATCH.pattern)
#: Names of files that a kill leaves: of a write, and of the takeover of a lease, here or in filelock.
LEFTOVER = re.compile(rf"({FILES.pattern}|model\.pt)\.\d+\.tmp|record\.lease\.(\w+\.tmp|(break|restore)\.\d+\.\w+)")


class Record:
    """The record of one cell: a folder, which need not exist, and below a root the cell's lines in a volume.

    Args:
        path: The folder.
        cell: The configuration.
        root: The folder of records whose volume takes the finished record; None: it stays in its folder.

    """

    def __init__(self, path: Path, cell: Cell, root: Path | None = None) -> None:
        self.path = path
        self.cell = cell
        self.root = root
        self.about: dict[str, Any] = {}  # metadata for every result or failure, such as the provenance of the data
        self._hold: Hold | None = None

    @classmethod
    def for_cell(cls, cell: Cell, root: Path) -> "Record":
        """Return the record of `cell` below `root`, in the place that grids use."""
        return cls(root / volumes.LIVE / cell.name, cell, root)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Return the record in an existing folder.

        Raises:
            RecordError: Its config.json is missing, damaged or foreign.

        """
        file = path / "config.json"
        values = read_json(file)
        try:
            cell = from_dict(values.get("cell", {}))
        except CellError as error:
            raise RecordError(file, f"contains no cell that this version knows ({error})") from error
        if values.get("identity") != cell.identity:
            raise RecordError(file, "its identity does not match its configuration: it was edited by hand")
        return cls(path, cell)

    @property
    def checkpoint(self) -> Path:
        """Path of the cell's checkpoint while the cell is unfinished."""
        return self.path / "checkpoint.pt"

    @property
    def shards(self) -> Path:
        """Folder that replaces the checkpoint if several processes train the cell."""
        return self.path / "checkpoint"

    @property
    def resumable(self) -> bool:
        """Return whether there is a checkpoint to resume from, of one process or of several."""
        return self.checkpoint.exists() or self.shards.exists()

    @property
    def has_result(self) -> bool:
        """Return whether there is a result, whether good, bad or damaged. It is not read."""
        if os.path.exists(self.path / "result.json"):
            return True
        return self.root is not None and volumes.contains(self.cell, self.root)

    @contextmanager
    def lock(self) -> Iterator[Hold]:
        """Hold the folder against other processes until the context or this process ends.

        Within the context, every write raises LockLostError if another machine has taken the cell over.

        Raises:
            LockedError: Another process holds it.
            StorageError: The lock cannot be written.

        """
        with ExitStack() as stack:
            try:
                self._hold = stack.enter_context(hold(self.path))
            except FileNotFoundError as error:  # the folder was removed between the two steps of locking
                raise LockedError(f"{self.path}: another process has just finished this cell") from error
            try:
                yield self._hold
            finally:
                empty = self.root is not None and self._empty(self._hold)
                self._hold = None
        if empty:
            with suppress(OSError):  # another process already holds it
                self.path.rmdir()

    def _empty(self, held: Hold) -> bool:
        """Return whether the folder contains only the lock of this process, and remove the lock's file then.

        filelock detects that its file was removed. The lease is still held.
        """
        try:
            held.check()
        except LockLostError:  # another process has the lock
            return False
        names = {file.name for file in self.path.glob("*")} - {*locks.FILES}
        if not all(map(LEFTOVER.fullmatch, names)):
            return False
        for name in (*names, locks.LOCK):
            (self.path / name).unlink(missing_ok=True)
        return True

    def check_held(self) -> None:
        """Raise LockLostError if this record was locked and another machine has taken it over."""
        if self._hold is not None:
            self._hold.check()

    # --- reading

    def state(self) -> State:
        """Return the state of the record.

        Raises:
            RecordError: As for `read`.

        """
        return self.read().state

    def read(self, known: Iterable[Run[Cell]] = ()) -> Run[Cell]:
        """Return everything that is recorded.

        Args:
            known: Finished runs that the caller has. If the volume contains a part of one of them, its append was
                interrupted and will be repeated.

        Raises:
            RecordError: A file is damaged, or of another version or cell; or folder and volume have different results.

        """
        # The folder before the volume: a record that is moved in between is seen at least once.
        own, damage = None, None
        try:
            own = self._own_run()
        except RecordError as error:
            damage = error
        except OSError as error:  # such as a folder of another user
            damage = unreadable(self.path / "config.json", error)
        published = None if self.root is None else volumes.find_run(self.cell, self.root)
        if published is not None and (own is not None or not (self.path / "result.json").exists()):
            if own is not None and own.state.finished and own.content != published.content:
                raise volumes.conflict(published, own)
            return published
        if damage is not None:
            raise damage
        assert own is not None
        if self.root is not None and own.state.status is Status.NOT_RUN:
            volumes.check(self.cell, self.root, known)
        return own

    def _own_run(self) -> Run[Cell]:
        """Return the run in the folder."""
        file = self.path / "result.json"
        if not (self.path / "config.json").exists():
            if file.exists():
                raise RecordError(file, "there is a result here, but no config.json that describes its cell")
            return Run(self.cell, State(Status.NOT_RUN, epochs=self.cell.epochs_expected), place=self.path)
        self._check_config()
        result = read_json(file) if file.exists() else None  # before the metrics: it is written after them
        metrics = tuple(self.own_metrics())
        state = state_of(self.cell, self.path, result, len(metrics))
        environments, codes = (tuple(self._entries(f"{name}.json")) for name in ("environment", "code"))
        patches = {code["diff"]: self._patch(code["diff"]) for code in codes if "diff" in code}
        return Run(self.cell, state, metrics, environments, codes, patches, self.path)

    def own_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics in the folder, of the run that this process works on. A volume may have another run.

        Raises:
            RecordError: The file is damaged.

        """
        file = self.path / "metrics.jsonl"
        if not os.path.lexists(file):
            return []
        text = read_bytes(file).decode("utf-8", "replace")
        lines = text.split("\n")[:-1]  # text after the last newline is an interrupted write
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

    def _patch(self, name: str) -> bytes:
        if not isinstance(name, str) or not PATCH.fullmatch(name):
            file = self.path / "code.json"
            raise RecordError(file, f"is damaged: diff is {str(name)[:80]!r}, expected a name such as diff-1.patch")
        try:
            return read_bytes(self.path / name)
        except RecordError as error:
            raise RecordError(self.path / name, f"is listed in code.json and {error.args[1]}") from error

    # --- writing, under the lock

    def begin(self, environment: Mapping[str, Any], code: Mapping[str, Any], patch: bytes = b"") -> None:
        """Write what is known before the work begins. When the cell resumes, add environment and code if they changed.

        Raises:
            RecordError: The folder contains something else.
            StorageFullError: There was no room.

        """
        self.check_held()
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "config.json").exists():
            self._check_config()
            for leftover in self.path.glob("*.tmp"):  # left by a process that was killed while it wrote
                if LEFTOVER.fullmatch(leftover.name):
                    leftover.unlink()
        else:
            check_free(self.path)
            values = {"schema": SCHEMA, "identity": self.cell.identity, "cell": self.cell.to_dict()}
            write_json(self.path / "config.json", values)
        self._add("environment.json", dict(environment))
        self._add_code(dict(code), patch)

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Add the line of one epoch.

        Raises:
            StorageFullError: There was no room.

        """
        self.check_held()
        append_line(self.path / "metrics.jsonl", json.dumps(dict(metrics), allow_nan=False))

    def keep_metrics(self, count: int) -> None:
        """Cut the metrics to the first `count` epochs, which a checkpoint contains.

        Raises:
            RecordError: There are fewer.

        """
        metrics, file = self.own_metrics(), self.path / "metrics.jsonl"
        if len(metrics) < count:
            raise RecordError(file, f"has {len(metrics)} lines, but the checkpoint was saved after {count} epochs")
        self.check_held()
        text = "".join(json.dumps(line) + "\n" for line in metrics[:count])
        if file.exists() and file.read_bytes() != text.encode():
            write_atomically(file, text.encode())

    def finish(self, values: Mapping[str, Any]) -> None:
        """Write the result, which makes the cell done, and publish it.

        Raises:
            StorageFullError: There was no room. The next run publishes a result that was written.
            LockedError: As for `publish`.
            LockLostError: As for `publish`.

        """
        self._write_result(Status.DONE, values)
        self.publish()

    def fail(self, reason: str, detail: str, values: Mapping[str, Any] | None = None) -> None:
        """Record that the cell cannot be finished, and why. The last good checkpoint stays.

        Raises:
            StorageFullError: As for `finish`.
            LockedError: As for `finish`.
            LockLostError: As for `finish`.

        """
        self._write_result(Status.FAILED, {"reason": reason, "detail": detail, **(values or {})})
        self.publish()

    def publish(self) -> None:
        """Append the record to its volume if it is finished, and remove the files that only an unfinished record needs.

        If the volume has another result, the folder stays, and `state` raises.

        Raises:
            LockedError: Another process held the volumes for too long.
            LockLostError: Another process took over the record or the volumes.
            StorageFullError: There was no room.
            RecordError: The record or its volume cannot be read.

        """
        self.check_held()
        own = self._own_run()
        if own.done:
            self.remove_checkpoint()
        if self.root is None or (own.state.finished and volumes.publish(own, self.root) is not None):
            return
        published = volumes.find_run(self.cell, self.root)
        if published is not None and published.done:
            self.remove_checkpoint()
        if published is not None and not self.resumable:
            self._remove_folder()

    def tidy(self) -> None:
        """Publish a finished record that a kill left in its folder, unless another process holds the lock."""
        if self.path.exists():
            # Its result counts in the folder too. So a folder of another user, for example, is no reason to stop.
            with suppress(LockedError, LockLostError, OSError), self.lock():
                self.publish()

    def _remove_folder(self) -> None:
        """Remove the record's files: the result first and config.json last, so that a partial removal is not damage."""
        order = {"result.json": 0, "code.json": 1, "config.json": 3}
        files = [file for file in self.path.iterdir() if FILES.fullmatch(file.name) or LEFTOVER.fullmatch(file.name)]
        for file in sorted(files, key=lambda file: order.get(file.name, 2)):
            file.unlink()
        with suppress(OSError):  # a held folder contains a lock, and is removed with it
            self.path.rmdir()

    def remove_checkpoint(self) -> None:
        """Remove the files that only a resume needs."""
        self.checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.shards, ignore_errors=True)

    def retry(self) -> None:
        """Remove a failure, so that the cell resumes from its last good checkpoint.

        Raises:
            ValueError: The cell has not failed.

        """
        if (state := self.state()).status is not Status.FAILED:
            raise ValueError(f"{self.path} is not a failed cell: it is {state}")
        (self.path / "result.json").unlink(missing_ok=True)
        if self.root is not None:
            volumes.remove(self.cell, self.root)

    def _write_result(self, status: Status, values: Mapping[str, Any]) -> None:
        self.check_held()
        head = {"schema": SCHEMA, "identity": self.cell.identity, "kind": self.cell.kind, "status": status}
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
        entries = read_json(file).get("entries")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise RecordError(file, "has no list of JSON objects")
        return entries

    def _add(self, name: str, entry: dict[str, Any]) -> None:
        entries = self._entries(name)
        if entry not in entries:
            write_json(self.path / name, {"schema": SCHEMA, "entries": [*entries, entry]})

    def _add_code(self, entry: dict[str, Any], patch: bytes) -> None:
        entries = self._entries("code.json")
        if patch:
            for known in entries:
                if "diff" in known and self._patch(known["diff"]) == patch:
                    entry["diff"] = known["diff"]
            if "diff" not in entry:
                entry["diff"] = f"diff-{len(entries) + 1}.patch"
                write_atomically(self.path / entry["diff"], patch)
        self._add("code.json", entry)


def check_free(folder: Path) -> None:
    """Raise RecordError if a new record cannot begin in `folder`: it is not a folder, or contains other files."""
    fix = "It was not changed; choose another folder, or a new one in it"
    if os.path.lexists(folder) and not folder.is_dir():
        raise RecordError(folder, "is not a folder", fix)
    if not folder.is_dir() or (folder / "config.json").exists():
        return
    # Other folders are harmless; the only folder of a record is that of a checkpoint, which it removes at the end.
    names = sorted(file.name for file in folder.iterdir() if file.name == "checkpoint" or not file.is_dir())
    foreign = [name for name in names if name not in locks.FILES and not LEFTOVER.fullmatch(name)]
    if foreign:
        raise RecordError(folder, f"is not a record (it has no config.json), and contains {some(foreign)}", fix)


@dataclass(frozen=True)
class Scan:
    """Content of a folder of records."""

    records: tuple[Run[Cell], ...]  # readable ones, done or not, in order of scale and name
    problems: tuple[RecordError, ...]  # the others


def scan(root: Path) -> Scan:
    """Read every record below `root`, in folders and volumes. A damaged record does not hide the others.

    A folder that is not in the place of its cell, such as a backup, is a problem. Two finished records with different
    results are a problem, and neither counts.
    """
    candidates: list[Run[Cell]] = []
    damaged: list[RecordError] = []
    misplaced: list[RecordError] = []
    # Folders before volumes: a record that is moved in between is seen at least once.
    folders, unreadable = _folders(root)
    for folder in folders:
        try:
            record = Record.load(folder)
            if folder == (place := Record.for_cell(record.cell, root).path):
                candidates.append(record._own_run())
            else:
                fix = f"Move the folder to {place}, or away"
                misplaced.append(RecordError(folder / "config.json", "is not in the place of its cell", fix))
        except RecordError as error:
            damaged.append(error)
    found, problems = volumes.scan(root, candidates)
    problems += unreadable + misplaced
    names = {run.cell.name for run in found}
    problems += [error for error in damaged if error.name not in names or (error.path.parent / "result.json").exists()]
    runs: dict[str, list[Run[Cell]]] = {}
    for run in (*found, *candidates):
        runs.setdefault(run.cell.identity, []).append(run)
    records = []
    for same in runs.values():
        try:
            records.append(volumes.require_one_result(run for run in same if run.state.finished) or same[0])
        except RecordError as error:
            problems.append(error)
    return Scan(tuple(sorted(records, key=lambda run: (run.cell.scale, run.cell.name))), tuple(problems))


def _folders(root: Path) -> tuple[list[Path], list[RecordError]]:
    """Return the folders of records below `root`, and an error for each unreadable folder."""
    found: list[Path] = []
    problems: list[RecordError] = []
    for folder in volumes.listing(root, problems):
        try:
            names = {entry.name for entry in os.scandir(folder.path)} if folder.is_dir() else set()
        except FileNotFoundError:  # another process has just published it
            continue
        except OSError as error:
            problems.append(unreadable(Path(folder.path), error))
            continue
        if names & {"config.json", "result.json"}:
            found.append(Path(folder.path))
    return sorted(found), problems
