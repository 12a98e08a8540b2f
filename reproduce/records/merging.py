"""Records of several machines in one folder: nothing finished is lost, and nothing is written over that may count.

Copying folders over one another would let an unfinished record replace a finished one, or mix the metrics of two runs
of the same cell. Here each record is compared first:

    there is none here                            theirs is brought
    one is finished, the other is not             the finished one
    both unfinished                               the further one that has a checkpoint to continue from
    both finished, the same but for times         ours stays
    both finished, and different                  a conflict: both stay where they are, and a person decides
    the report could not show theirs              it is left, and named (a link, a pipe, a value that makes no sense)
    a process works on one, or ours is damaged    it is left, and named

A run that diverged is finished; one that ran out of memory is not: another machine may have more. Records of benchmarks
are brought too: one of the same name has the same content, or is a conflict.

A finished record is appended to its volume, whether the source has it in a volume or in a folder. An unfinished one
appears whole: it is copied into a folder of another name and renamed. One that replaces another is moved in file by
file under the lock of the cell, the old checkpoint removed first, the new one last: the record is valid at every
moment, and after a kill the same merge continues.
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

from reproduce.cells.kinds import Cell
from reproduce.records import benchmarks, volumes
from reproduce.records.benchmarks import BenchmarkError
from reproduce.records.locks import LockedError, LockLostError, hold, holder
from reproduce.records.reading import read_file
from reproduce.records.record import FILES, LEFTOVER, Record, RecordError, Run, Status, scan
from reproduce.records.results import check
from reproduce.records.storage import StorageFullError, explain_full_disk, write_atomically

LAST = ("checkpoint.pt", "checkpoint")
COPIES = ".merge-"  # how folders for the time begin


class Decision(enum.Enum):
    """What was done with a record of the source; the words take "would be " before them."""

    BROUGHT = "{}brought"
    REPLACED = "{}brought in place of one that was not as far"
    SAME = "there already"
    KEPT = "not as far as the one that is there"
    PUBLISHED = "{}moved from a folder here to a volume"
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


def merge(source: Path, root: Path, *, dry_run: dict[Path, Any] | None = None) -> Iterator[Decided]:
    """Bring the records below `source` to those below `root`, one after the other; nothing changes in `source`.

    Args:
        source: folder of records.
        root: folder of records; made if need be.
        dry_run: if given, it is only said what would be done; it receives each record that would be brought, by its
            place, for the dry runs of further sources.

    Raises:
        StorageFullError: no room; what was brought before is whole.

    """
    if dry_run is None:
        for left in root.glob(f"{COPIES}*"):  # by merges that were killed; one that runs now holds its own
            with contextlib.suppress(LockedError, OSError), hold(left):  # another user's cannot be removed, or locked
                shutil.rmtree(left)
    scanned = scan(source)
    for problem in scanned.problems:
        yield Decision.UNREADABLE, problem.path, str(problem)
    for run in scanned.records:
        yield _merge_one(run, Record.of(run.cell, root), dry_run=dry_run)
    for file in sorted((source / benchmarks.FOLDER).glob("*.json")):
        yield _merge_benchmark(file, root / benchmarks.FOLDER / file.name, dry_run=dry_run)
    if dry_run is None:
        yield from publish_finished(root)


def _merge_benchmark(theirs: Path, place: Path, *, dry_run: dict[Path, Any] | None) -> Decided:
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


def publish_finished(root: Path, *, dry_run: bool = False) -> Iterator[Decided]:
    """Move finished records that are still in folders to their volumes: of runs that were killed, or of older code."""
    for run in scan(root).records:
        record = Record.of(run.cell, root)
        if not run.state.finished or not record.path.exists():
            continue
        try:
            if not dry_run:
                with record.lock():
                    record.publish()
            moved = not _published(run)
        except (LockedError, LockLostError, RecordError):  # the first two: next time; `records check` reports the last
            moved = False
        if moved:
            yield Decision.PUBLISHED, record.path, str(run.state)


def _merge_one(theirs: Run[Cell], ours: Record, *, dry_run: dict[Path, Any] | None) -> Decided:
    try:
        decision, detail = _decide(theirs, ours, dry_run=dry_run)
    except (LockedError, LockLostError) as error:
        decision, detail = Decision.IN_USE, str(error)
    except _TheirsError as error:
        decision, detail = Decision.UNREADABLE, str(error)
    except RecordError as error:
        decision, detail = Decision.UNREADABLE, f"there is a record of this cell that cannot be read: {error}"
    except StorageFullError:  # there is no room for any other record either
        raise
    except OSError as error:
        decision, detail = Decision.UNREADABLE, str(error)
    if _published(theirs):
        detail = ": ".join(filter(None, (theirs.cell.name, detail)))
    return decision, theirs.place, detail


def _decide(theirs: Run[Cell], ours: Record, *, dry_run: dict[Path, Any] | None) -> tuple[Decision, str]:
    _check_theirs(theirs)
    here = (dry_run or {}).get(ours.path) or ours.read(known=[theirs])
    decision, detail = _compare(theirs, here)
    if decision in BRINGING:
        if dry_run is None:
            return _bring(theirs, ours)
        dry_run[ours.path] = theirs
    return decision, detail


class _TheirsError(Exception):
    """A record of the source is one that must not, or cannot, be copied."""


def _check_theirs(run: Run[Cell]) -> None:
    """Raise _TheirsError if a record has what the report could not show, or files that no record has."""
    try:
        check(run)
    except RecordError as error:
        raise _TheirsError(str(error)) from error
    for file in [] if _published(run) else _files(run.place):
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
    walk = os.walk(shards, onerror=_stop)
    below = (Path(place, name) for place, folders, names in walk for name in (*folders, *names))
    return here + [file for file in below if file.suffix != ".tmp" and (file.is_symlink() or not file.is_dir())]


def _stop(error: OSError) -> None:
    """Raise the error about a folder that cannot be read, unless there is no such folder."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _regular(file: Path) -> bool:
    return stat.S_ISREG(file.lstat().st_mode)


def _compare(theirs: Run[Cell], ours: Run[Cell], *, held: bool = False) -> tuple[Decision, str]:
    """Return what is to be done with a record, and what to say of it; with `held`, this process holds ours."""
    if theirs.state.finished and ours.state.finished:
        if theirs.content == ours.content:
            return Decision.SAME, ""
        place = f"{ours.place} is {ours.state}"
        return Decision.CONFLICT, f"{theirs.state}, and {place} with another result; remove one of them"
    for run in (theirs, ours):
        who = None if (held and run is ours) or _published(run) else holder(run.place)
        if who is not None and not who.gone:
            return Decision.IN_USE, f"{who} works on {run.place}"
    if ours.state.status is Status.NOT_RUN:
        return Decision.BROUGHT, str(theirs.state)
    if _progress(theirs) > _progress(ours):
        return Decision.REPLACED, f"{theirs.state} in place of {ours.state}"
    return Decision.KEPT, f"{theirs.state}, and {ours.state} is there"


def _published(run: Run[Cell]) -> bool:
    return run.place.suffix == ".jsonl"


def _progress(run: Run[Cell]) -> tuple[bool, int]:
    """What can be continued; epochs without a checkpoint are run again."""
    if run.state.finished:
        return True, 0
    return False, run.state.epochs_done if Record(run.place, run.cell).resumable else -1


def _bring(theirs: Run[Cell], ours: Record) -> tuple[Decision, str]:
    """Append a finished record to its volume, or copy the folder of another; compared again under the lock."""
    if not theirs.state.finished and not ours.path.exists() and _copy(theirs, ours):
        return Decision.BROUGHT, str(theirs.state)
    with ours.lock():
        decision, detail = _compare(theirs, ours.read(known=[theirs]), held=True)  # it may be further by now
        if decision in BRINGING and theirs.state.finished:
            return _append(theirs, ours, (decision, detail))
        if decision in BRINGING:
            _replace(theirs, ours)
    return decision, detail


def _append(theirs: Run[Cell], ours: Record, decided: tuple[Decision, str]) -> tuple[Decision, str]:
    """Append a finished record to our volume, and remove our unfinished one."""
    assert ours.root is not None
    conflict = volumes.publish(theirs, ours.root)
    if conflict is not None:
        return Decision.CONFLICT, str(conflict)
    ours.remove_checkpoint()
    ours.publish()
    return decided


def _copy(theirs: Run[Cell], ours: Record) -> bool:
    """Copy a record whole to where there is none; False if there is one by now."""
    ours.path.parent.parent.mkdir(parents=True, exist_ok=True)
    with _copied(theirs, ours) as copy:
        ours.path.parent.mkdir(exist_ok=True)
        if ours.has_result:  # by now
            return False
        try:
            copy.rename(ours.path)
        except OSError:
            if ours.path.exists():
                return False
            raise
    return True


def _replace(theirs: Run[Cell], ours: Record) -> None:
    with _copied(theirs, ours) as copy:
        ours.remove_checkpoint()
        for file in ours.path.iterdir():  # what the copy lacks, such as the metrics of another run of the cell
            if (FILES.fullmatch(file.name) or LEFTOVER.fullmatch(file.name)) and not (copy / file.name).exists():
                file.unlink()
        for file in sorted(copy.iterdir(), key=lambda file: file.name in LAST):
            file.replace(ours.path / file.name)


@contextlib.contextmanager
def _copied(theirs: Run[Cell], ours: Record) -> Iterator[Path]:
    """A copy beside our records, for the time: the files that a record has, none of locks and of interrupted writes.

    The checkpoint first: metrics that are newer than a checkpoint are cut back to it, older ones would be damage. Of
    several processes' checkpoints the file that names one comes before those that it names.

    Raises: LockedError: what was copied is not whole, since somebody works on the record.
    """
    with tempfile.TemporaryDirectory(prefix=COPIES, dir=ours.path.parent.parent) as folder, hold(Path(folder)):
        copy = Path(folder) / "records" / ours.path.name  # so deep that nobody takes it for a record
        try:
            names = [file.relative_to(theirs.place) for file in _files(theirs.place)]
            with explain_full_disk(f"to copy {theirs.place}", "free some space and give the same command again"):
                for name in sorted(names, key=lambda name: (name.parts[0] not in LAST, len(name.parts))):
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    if not _regular(theirs.place / name):
                        raise _TheirsError(f"{theirs.place / name} became a link while it was copied; it was left")
                    shutil.copy2(theirs.place / name, copy / name)
            Record(copy, theirs.cell).state()
        except (FileNotFoundError, RecordError) as error:
            raise LockedError(f"{theirs.place} changed while it was copied; give the same command again") from error
        yield copy
