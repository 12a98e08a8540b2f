"""Merge records of several machines into one folder. No finished record is lost, and no valid one is overwritten.

Copying folders over one another would let an unfinished record replace a finished one, or mix the metrics of two runs
of the same cell. Here each record is compared first:

    there is none here                            theirs is copied
    one is finished, the other is not             the finished one is kept
    both unfinished                               the further one with a checkpoint to resume from is kept
    both finished, the same except for times      ours stays
    both finished, and different                  a conflict: both stay where they are, and a person decides; with
                                                  `replace` theirs takes the place of ours, which moves to the folder
                                                  `replaced`
    the report could not show theirs              skipped and reported (a link, a pipe, an invalid value)
    a process works on one, or ours is damaged    skipped and reported

A diverged run counts as finished. A run that ran out of memory does not, since another machine may have more. Records
of benchmarks are merged by name; differing contents are a conflict.

A finished record is appended to its volume, also if a kill left it in a folder of the source. An unfinished record is
copied into a temporary folder, and moved from there file by file under the lock of the cell: the old checkpoint is
removed first, then `config.json` is moved, and the new checkpoint last. So the record is valid at every moment, and
after a kill the same merge continues.
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
from reproduce.records.locks import LockedError, LockLostError, hold, holder
from reproduce.records.reading import read_file
from reproduce.records.record import FILES, LEFTOVER, Record, scan
from reproduce.records.results import check
from reproduce.records.run import RecordError, Run, Status
from reproduce.records.storage import StorageFullError, explain_full_disk, write_atomically

LAST = ("checkpoint.pt", "checkpoint")
COPIES = ".merge-"  # prefix of temporary folders


class Decision(enum.Enum):
    """Outcome for a record of the source. A dry run inserts "would be " into the words."""

    BROUGHT = "{}brought"
    REPLACED = "{}brought in place of a less complete record"
    EXCHANGED = "{}brought in place of another result, which {}moved to the folder “replaced”"
    SAME = "already present"
    KEPT = "skipped: the record here is more complete"
    IN_USE = "skipped: in use"
    CONFLICT = "in conflict with another result of the same name; both were kept"
    UNREADABLE = "skipped: unreadable"

    @property
    def bad(self) -> bool:
        """Return whether something could not be merged."""
        return self in (Decision.IN_USE, Decision.CONFLICT, Decision.UNREADABLE)


BRINGING = (Decision.BROUGHT, Decision.REPLACED)


#: Outcome for a record, its path in the source, and a detail for the user, which may be empty.
Decided = tuple[Decision, Path, str]


def merge(
    source: Path, root: Path, *, replace: bool = False, dry_run: dict[Path, Any] | None = None
) -> Iterator[Decided]:
    """Merge the records below `source` into those below `root`, one after the other. `source` does not change.

    Args:
        source: Folder of records.
        root: Folder of records; created if needed.
        replace: Whether a finished result takes the place of a finished one below `root` that is of other code or
            has other values. That one is kept in the folder `replaced`.
        dry_run: If given, nothing is written. It receives each record that would be copied, by its place, for the dry
            runs of further sources.

    Yields:
        The outcome for each record.

    Raises:
        StorageFullError: There was no room. Records merged before are complete.

    """
    if dry_run is None:
        for left in root.glob(f"{COPIES}*"):  # left by killed merges; a running merge holds a lock on its folder
            with contextlib.suppress(LockedError, OSError), hold(left):  # another user's cannot be removed, or locked
                shutil.rmtree(left)
    scanned = scan(source)
    for problem in scanned.problems:
        yield Decision.UNREADABLE, problem.path, str(problem)
    for run in scanned.records:
        yield _merge_one(run, Record.for_cell(run.cell, root), replace=replace, dry_run=dry_run)
    for file in sorted((source / benchmarks.FOLDER).glob("*.json")):
        yield _merge_benchmark(file, root / benchmarks.FOLDER / file.name, dry_run=dry_run)


def _merge_benchmark(theirs: Path, place: Path, *, dry_run: dict[Path, Any] | None) -> Decided:
    try:
        benchmarks.read(theirs)
    except RecordError as error:
        return Decision.UNREADABLE, theirs, str(error)
    content = read_file(theirs)
    ours = (dry_run or {}).get(place, place)
    if ours.exists():
        if ours.read_bytes() == content:
            return Decision.SAME, theirs, ""
        return Decision.CONFLICT, theirs, f"{ours} is of another run; rename one of them"
    if dry_run is None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    else:
        dry_run[place] = theirs
    return Decision.BROUGHT, theirs, ""


def _merge_one(theirs: Run[Cell], ours: Record, *, replace: bool, dry_run: dict[Path, Any] | None) -> Decided:
    try:
        with explain_full_disk(f"to merge {theirs.cell.name}"):
            decision, detail = _decide(theirs, ours, replace=replace, dry_run=dry_run)
    except (LockedError, LockLostError) as error:
        decision, detail = Decision.IN_USE, str(error)
    except RecordError as error:
        decision, detail = Decision.UNREADABLE, f"the record of this cell here cannot be read: {error}"
    except StorageFullError:  # no other record would fit either
        raise
    except OSError as error:
        decision, detail = Decision.UNREADABLE, str(error)
    if _is_published(theirs):
        detail = ": ".join(filter(None, (theirs.cell.name, detail)))
    return decision, theirs.place, detail


def _decide(theirs: Run[Cell], ours: Record, *, replace: bool, dry_run: dict[Path, Any] | None) -> tuple[Decision, str]:
    if problem := _problem_of(theirs):
        return Decision.UNREADABLE, problem
    here = (dry_run or {}).get(ours.path) or ours.read(known=[theirs])
    decision, detail = _compare(theirs, here)
    if replace and (decision is Decision.CONFLICT or (decision is Decision.SAME and theirs.codes != here.codes)):
        if dry_run is None:
            assert ours.root is not None
            with ours.lock():
                ours.publish()  # a kill after the result leaves the folder
                volumes.replace(theirs, ours.root)
        return Decision.EXCHANGED, f"{theirs.state} in place of {here.state}"
    if decision is Decision.SAME and dry_run is None:
        ours.tidy()
    if decision in BRINGING:
        if dry_run is None:
            return _bring(theirs, ours)
        dry_run[ours.path] = theirs
    return decision, detail


def _problem_of(theirs: Run[Cell]) -> str:
    """Describe values that the report could not show, or files that no record has; empty if there are none."""
    try:
        check(theirs)
    except RecordError as error:
        return str(error)
    for file in [] if _is_published(theirs) else _files(theirs.place):
        if not _regular(file):
            return (
                f"{file} is a link, a pipe or a device: a copy of it would have the content of a file elsewhere. "
                f"It was skipped; get the file itself"
            )
    return ""


def _files(folder: Path) -> list[Path]:
    """Return the files of a record to copy: those with the names of record files, and its checkpoint's."""
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
    """Return the decision for a record, and its detail. With `held`, this process holds ours."""
    if theirs.state.finished and ours.state.finished:
        if theirs.content == ours.content:
            return Decision.SAME, ""
        place = f"{ours.place} is {ours.state}"
        return Decision.CONFLICT, f"{theirs.state}, and {place} with another result; --replace takes this one"
    for run in (theirs, ours):
        who = None if (held and run is ours) or _is_published(run) else holder(run.place)
        if who is not None and not who.gone:
            return Decision.IN_USE, f"{who} works on {run.place}"
    if ours.state.status is Status.NOT_RUN:
        return Decision.BROUGHT, str(theirs.state)
    if _progress(theirs) > _progress(ours):
        return Decision.REPLACED, f"{theirs.state} in place of {ours.state}"
    return Decision.KEPT, f"{theirs.state}, and {ours.state} is there"


def _is_published(run: Run[Cell]) -> bool:
    return run.place.suffix == ".jsonl"


def _progress(run: Run[Cell]) -> tuple[bool, int]:
    """Return how much of a run can be resumed. Epochs without a checkpoint are run again."""
    if run.state.finished:
        return True, 0
    return False, run.state.epochs_done if Record(run.place, run.cell).resumable else -1


def _bring(theirs: Run[Cell], ours: Record) -> tuple[Decision, str]:
    """Append a finished record to its volume, or copy another's files, after a second comparison under the lock."""
    with contextlib.ExitStack() as stack:
        copy = None if theirs.state.finished else stack.enter_context(_copy_aside(theirs, ours))
        stack.enter_context(ours.lock())
        decision, detail = _compare(theirs, ours.read(known=[theirs]), held=True)  # it may have progressed
        if decision not in BRINGING:
            return decision, detail
        if copy is not None:
            _replace(copy, ours)
            return decision, detail
        assert ours.root is not None
        if conflict := volumes.publish(theirs, ours.root):
            return Decision.CONFLICT, str(conflict)
        ours.remove_checkpoint()
        ours.publish()  # removes our unfinished record
        return decision, detail


def _replace(copy: Path, ours: Record) -> None:
    """Move the files of a copy into our folder, in place of those that are there."""
    ours.remove_checkpoint()
    for file in ours.path.iterdir():  # what the copy lacks, such as the metrics of another run of the cell
        if (FILES.fullmatch(file.name) or LEFTOVER.fullmatch(file.name)) and not (copy / file.name).exists():
            file.unlink()
    for file in sorted(copy.iterdir(), key=lambda file: (file.name in LAST, file.name != "config.json")):
        file.replace(ours.path / file.name)


@contextlib.contextmanager
def _copy_aside(theirs: Run[Cell], ours: Record) -> Iterator[Path]:
    """Yield a temporary copy next to our records: the files of a record, without those of locks and interrupted writes.

    The checkpoint is copied first: metrics that are newer than a checkpoint are cut back to it, but older metrics would
    be damage. Of the checkpoints of several processes, the file that names a checkpoint comes before the files that it
    names.

    Raises:
        LockedError: The copy is not complete, because a process works on the record.

    """
    root = ours.path.parent.parent
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=COPIES, dir=root) as folder, hold(Path(folder)):
        copy = Path(folder) / "records" / ours.path.name  # nested, so that no scan mistakes it for a record
        try:
            names = [file.relative_to(theirs.place) for file in _files(theirs.place)]
            with explain_full_disk(f"to copy {theirs.place}", "free some space and give the same command again"):
                for name in sorted(names, key=lambda name: (name.parts[0] not in LAST, len(name.parts))):
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    if not _regular(theirs.place / name):
                        raise RecordError(theirs.place / name, "became a link")
                    shutil.copy2(theirs.place / name, copy / name)
            Record(copy, theirs.cell).state()
        except (FileNotFoundError, RecordError) as error:
            raise LockedError(f"{theirs.place} changed while it was copied; give the same command again") from error
        yield copy
