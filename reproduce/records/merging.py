"""Records of several machines in one folder: nothing finished is lost, and nothing is written over that may count.

Copying folders over one another would let an unfinished record replace a finished one, or mix the metrics of two runs
of the same cell. Here each record is compared first:

    there is none here                            it is brought, checkpoint and all
    one is finished, the other is not             the finished one
    both unfinished                               the further one that has a checkpoint to go on from
    both finished, the same but for times         ours stays
    both finished, and different                  a conflict: both stay where they are, and a person decides
    the report could not show theirs              it is left, and named (a link, a pipe, a value that makes no sense)
    someone works on either, or it is damaged     it is left, and named

To diverge is to be finished; to run out of memory is not: another machine may have more. Records of benchmarks come
along: what is here under the name is the same, or a conflict.

A record appears whole: it is copied into a folder beside the records and renamed into place. One that replaces another
is moved in file by file under the lock of the cell, the old checkpoint removed first, the new one or the result last:
the record is valid at every moment, and after a kill the same merge goes on.
"""

import contextlib
import enum
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reproduce.records import benchmarks, locks
from reproduce.records.benchmarks import BenchmarkError
from reproduce.records.locks import LockedError, hold, holder
from reproduce.records.reading import read_file
from reproduce.records.record import FILES, Record, RecordError, State, Status, scan
from reproduce.records.results import read_run
from reproduce.records.storage import StorageFullError, explain_full_disk, write_atomically

#: What two runs of one cell never have in common.
TIMES = ("train_seconds", "evaluation_seconds", "images_per_second", "wall_seconds")
LAST = ("checkpoint.pt", "checkpoint", "result.json")
COPIES = ".merge-"  # how folders for the time begin


class Decision(enum.Enum):
    """What was done with a record of the source; the words take "would be " before them."""

    BROUGHT = "{}brought"
    REPLACED = "{}brought in place of one that was not as far"
    SAME = "there already"
    KEPT = "not as far as the one that is there"
    IN_USE = "left, since somebody works on them"
    CONFLICT = "in conflict: another result of the same name is there, and both were left"
    UNREADABLE = "left, since they cannot be read"

    @property
    def bad(self) -> bool:
        """Whether something could not be brought."""
        return self in (Decision.IN_USE, Decision.CONFLICT, Decision.UNREADABLE)

    @property
    def to_be_told(self) -> bool:
        """Whether a person wants to know of the single record."""
        return self not in (Decision.SAME, Decision.KEPT)


BRINGING = (Decision.BROUGHT, Decision.REPLACED)


#: What was done with a record, its path in the source, and what a person should know of it, which may be nothing.
Decided = tuple[Decision, Path, str]


def merge(source: Path, root: Path, *, dry_run: dict[Path, Path] | None = None) -> Iterator[Decided]:
    """Bring the records under `source` to those under `root`, one after the other; nothing changes in `source`.

    Args:
        source: folder of records.
        root: folder of records; made if need be.
        dry_run: if given, it is only said what would be done; it receives, by the place of each record that would be
            brought, from where, for the dry runs of further sources.

    Raises:
        StorageFullError: no room; what was brought before is whole.

    """
    if dry_run is None:
        for left in root.glob(f"{COPIES}*"):  # by merges that were killed; one that runs now holds its own
            with contextlib.suppress(LockedError), hold(left):
                shutil.rmtree(left)
    scanned = scan(source)
    for problem in scanned.problems:
        yield Decision.UNREADABLE, problem.path, str(problem)
    for record, state in scanned.records:
        yield _merge_one(record, state, Record.of(record.cell, root), dry_run=dry_run)
    for file in sorted((source / benchmarks.FOLDER).glob("*.json")):
        yield _merge_benchmark(file, root / benchmarks.FOLDER / file.name, dry_run=dry_run)


def _merge_benchmark(theirs: Path, place: Path, *, dry_run: dict[Path, Path] | None) -> Decided:
    try:
        benchmarks.read(theirs)
    except BenchmarkError as error:
        return Decision.UNREADABLE, theirs, str(error)
    content = read_file(theirs)
    ours = (dry_run or {}).get(place, place)
    if ours.exists():
        if ours.read_bytes() == content:
            return Decision.SAME, theirs, ""
        return Decision.CONFLICT, theirs, f"{ours} is of another run; give one of them another name"
    if dry_run is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    else:
        dry_run[place] = theirs
    return Decision.BROUGHT, theirs, ""


def _merge_one(theirs: Record, state: State, ours: Record, *, dry_run: dict[Path, Path] | None) -> Decided:
    try:
        _check_theirs(theirs, state)
        here = ours if dry_run is None else Record(dry_run.get(ours.path, ours.path), ours.cell)
        decision, detail = _compare(theirs, state, here)
        if dry_run is not None and decision in BRINGING:
            dry_run[ours.path] = theirs.path
        if dry_run is not None or decision not in BRINGING:
            return decision, theirs.path, detail
        if ours.path.exists() or not _bring(theirs, ours):
            with ours.lock():
                decision, detail = _compare(theirs, state, ours, held=True)  # it may have got on until now
                if decision in BRINGING:
                    _replace(theirs, ours)
    except LockedError as error:
        return Decision.IN_USE, theirs.path, str(error)
    except _TheirsError as error:
        return Decision.UNREADABLE, theirs.path, str(error)
    except RecordError as error:
        return Decision.UNREADABLE, theirs.path, f"there is a record of this cell that cannot be read: {error}"
    except StorageFullError:  # so there is for no other
        raise
    except OSError as error:
        return Decision.UNREADABLE, theirs.path, str(error)
    return decision, theirs.path, detail


class _TheirsError(Exception):
    """A record of the source is one that must not, or cannot, be copied."""


def _check_theirs(record: Record, state: State) -> None:
    """Raise _TheirsError if a record has what the report could not show, or files that no record has."""
    try:
        read_run(record, state)
    except RecordError as error:
        raise _TheirsError(str(error)) from error
    for file in _files(record.path):
        if not _regular(file):
            raise _TheirsError(
                f"{file} is a link, a pipe or a device: a copy of it would have the content of a file elsewhere. "
                f"It was left; ask for the file itself"
            )


def _files(folder: Path) -> list[Path]:
    """The files of a record that are copied: those whose names a record has, and its checkpoint's."""
    here = [file for file in folder.iterdir() if FILES.fullmatch(file.name)]
    shards = folder / "checkpoint"
    if shards.is_symlink():
        return [*here, shards]
    below = (Path(place, name) for place, folders, names in os.walk(shards) for name in (*folders, *names))
    return here + [file for file in below if file.suffix != ".tmp" and (file.is_symlink() or not file.is_dir())]


def _regular(file: Path) -> bool:
    return stat.S_ISREG(file.lstat().st_mode)


def _compare(theirs: Record, state: State, ours: Record, *, held: bool = False) -> tuple[Decision, str]:
    """What is to be done with a record, and what to say of it. Raises: RecordError: ours cannot be read."""
    here = ours.state()
    if state.finished and here.finished:
        if _content(theirs) == _content(ours):
            return Decision.SAME, ""
        return Decision.CONFLICT, f"{state}, and {ours.path} is {here} with another result; move one of them away"
    for record in (theirs, ours):
        who = None if held and record is ours else holder(record.path)
        if who is not None and not who.gone:
            return Decision.IN_USE, f"{who} works on {record.path}"
    if here.status is Status.NOT_RUN:
        return Decision.BROUGHT, str(state)
    if _progress(theirs, state) > _progress(ours, here):
        return Decision.REPLACED, f"{state} in place of {here}"
    return Decision.KEPT, f"{state}, and {here} is there"


def _progress(record: Record, state: State) -> tuple[bool, int]:
    """What can be gone on from: epochs without a checkpoint are begun anew."""
    return state.finished, state.epochs_done if record.resumable else -1


def _content(record: Record) -> tuple[Any, Any]:
    return _timeless(record.result() or {}), [_timeless(line) for line in record.metrics()]


def _timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIMES}


def _bring(theirs: Record, ours: Record) -> bool:
    """Copy a record whole to where there is none; False if there is one by now."""
    ours.path.parent.parent.mkdir(parents=True, exist_ok=True)
    with _copied(theirs, ours) as copy:
        ours.path.parent.mkdir(exist_ok=True)
        try:
            copy.rename(ours.path)
        except OSError:
            if ours.path.exists():
                return False
            raise
    return True


def _replace(theirs: Record, ours: Record) -> None:
    with _copied(theirs, ours) as copy:
        ours.remove_checkpoint()
        for file in ours.path.iterdir():  # what the copy lacks, such as the metrics of another run of the cell
            if file.is_file() and file.name not in locks.FILES and not (copy / file.name).exists():
                file.unlink()
        for file in sorted(copy.iterdir(), key=lambda file: file.name in LAST):
            file.replace(ours.path / file.name)


@contextlib.contextmanager
def _copied(theirs: Record, ours: Record) -> Iterator[Path]:
    """A copy beside our records, for the time: the files that a record has, none of locks and of interrupted writes.

    The checkpoint first: metrics that are newer than a checkpoint are cut back to it, older ones would be damage. Of
    several processes' checkpoints the file that names one comes before those that it names.

    Raises: LockedError: what was copied is not whole, since somebody works on the record.
    """
    with tempfile.TemporaryDirectory(prefix=COPIES, dir=ours.path.parent.parent) as folder, hold(Path(folder)):
        copy = Path(folder) / "records" / ours.path.name  # so deep that nobody takes it for a record
        try:
            names = [file.relative_to(theirs.path) for file in _files(theirs.path)]
            with explain_full_disk(f"to copy {theirs.path}", "free some space and give the same command again"):
                for name in sorted(names, key=lambda name: (name.parts[0] not in LAST, len(name.parts))):
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    if not _regular(theirs.path / name):
                        raise _TheirsError(f"{theirs.path / name} became a link while it was copied; it was left")
                    shutil.copy2(theirs.path / name, copy / name)
            Record(copy, theirs.cell).state()
        except (FileNotFoundError, RecordError) as error:
            raise LockedError(f"{theirs.path} changed while it was copied; give the same command again") from error
        yield copy
