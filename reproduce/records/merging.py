"""Merge records of several machines into one folder. No finished record is lost, and no valid one is overwritten.

Copying folders over one another would let an unfinished record replace a finished one, or mix the metrics of two runs
of the same cell. Here each finished record is compared first:

    no record here, or an unfinished one          the record is appended to its volume
    the same except for times                     ours stays
    a different one                               a conflict: both stay where they are, and a person decides; with
                                                  `replace` theirs takes the place of ours, which moves to the folder
                                                  `replaced`
    the report could not show theirs              skipped and reported (a link, a pipe, an invalid value)
    a process works on ours, or it is damaged     skipped and reported

A diverged run counts as finished. A run that ran out of memory does not, since another machine may have more.
Unfinished records are listed and skipped: a copy of the folder below `live` continues on another machine. Records of
benchmarks are merged by name; differing contents are a conflict. After a kill the same merge continues.
"""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reproduce.cells.kinds import Cell
from reproduce.records import benchmarks, volumes
from reproduce.records.locks import LockedError, LockLostError, holder
from reproduce.records.reading import read_file
from reproduce.records.record import Record, scan
from reproduce.records.results import check
from reproduce.records.run import RecordError, Run, Status
from reproduce.records.storage import StorageFullError, write_atomically


class Decision(enum.Enum):
    """Outcome for a record of the source. A dry run inserts "would be " into the words."""

    BROUGHT = "{}brought"
    REPLACED = "{}brought in place of an unfinished record"
    EXCHANGED = "{}brought in place of another result, which {}moved to the folder “replaced”"
    SAME = "already present"
    UNFINISHED = "skipped: unfinished (copy the folder to continue one here)"
    IN_USE = "skipped: in use"
    CONFLICT = "in conflict with another result of the same name; both were kept"
    UNREADABLE = "skipped: unreadable"

    @property
    def bad(self) -> bool:
        """Return whether something could not be merged."""
        return self in (Decision.IN_USE, Decision.CONFLICT, Decision.UNREADABLE)


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
    scanned = scan(source)
    for problem in scanned.problems:
        yield Decision.UNREADABLE, problem.path, problem.explanation
    for run in scanned.records:
        yield _merge_one(run, Record.for_cell(run.cell, root), replace=replace, dry_run=dry_run)
    for file in sorted((source / benchmarks.FOLDER).glob("*.json")):
        yield _merge_benchmark(file, root / benchmarks.FOLDER / file.name, dry_run=dry_run)


def _merge_benchmark(theirs: Path, place: Path, *, dry_run: dict[Path, Any] | None) -> Decided:
    try:
        benchmarks.read(theirs)
    except RecordError as error:
        return Decision.UNREADABLE, theirs, error.explanation
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
        if theirs.state.finished:
            check(theirs)
    except RecordError as error:
        return Decision.UNREADABLE, error.path, error.explanation
    try:
        decision, detail = _decide(theirs, ours, replace=replace, dry_run=dry_run)
    except (LockedError, LockLostError) as error:
        decision, detail = Decision.IN_USE, str(error)
    except RecordError as error:
        decision, detail = Decision.UNREADABLE, f"the record of this cell here cannot be read: {error}"
    except StorageFullError:  # no other record would fit either
        raise
    except OSError as error:
        decision, detail = Decision.UNREADABLE, str(error)
    if theirs.place.suffix == ".jsonl":
        detail = ": ".join(filter(None, (theirs.cell.name, detail)))
    return decision, theirs.place, detail


def _decide(theirs: Run[Cell], ours: Record, *, replace: bool, dry_run: dict[Path, Any] | None) -> tuple[Decision, str]:
    if not theirs.state.finished:
        return Decision.UNFINISHED, str(theirs.state)
    assert ours.root is not None
    here = (dry_run or {}).get(ours.path) or ours.read(known=[theirs])
    if here.state.finished:
        same = theirs.content == here.content
        if replace and not (same and theirs.codes == here.codes):
            if dry_run is None:
                with ours.lock():
                    ours.publish()  # a kill after the result leaves the folder
                    volumes.replace(theirs, ours.root)
            else:
                dry_run[ours.path] = theirs
            return Decision.EXCHANGED, f"{theirs.state} in place of {here.state}"
        if not same:
            place = f"{here.place} is {here.state}"
            return Decision.CONFLICT, f"{theirs.state}, and {place} with another result; --replace takes this one"
        if dry_run is None:
            ours.tidy()
        return Decision.SAME, ""
    who = holder(ours.path)
    if who is not None and not who.gone:
        return Decision.IN_USE, f"{who} works on {ours.path}"
    if dry_run is None:
        with ours.lock():
            if conflict := volumes.publish(theirs, ours.root):
                return Decision.CONFLICT, str(conflict)
            ours.remove_checkpoint()
            ours.publish()  # removes our unfinished record
    else:
        dry_run[ours.path] = theirs
    if here.state.status is Status.NOT_RUN:
        return Decision.BROUGHT, str(theirs.state)
    return Decision.REPLACED, f"{theirs.state} in place of {here.state}"
