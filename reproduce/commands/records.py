"""Define `records`: list and check records, merge those of several machines, export them as tables."""

import contextlib
import sys
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from reproduce.commands.common import RECORDS, check_records, check_writable
from reproduce.commands.options import FOLDER, UserPath
from reproduce.records import merging, reading, results
from reproduce.records.locks import holder
from reproduce.records.merging import Decision
from reproduce.records.record import scan
from reproduce.records.storage import StorageError, explain_full_disk

BLOCK = 1 << 20  # bytes
LAYOUT = "a folder of records has one subfolder per scale"


@click.group()
def records() -> None:
    """Manage the records of cells."""


@records.command("list")
@RECORDS
def list_(root: Path) -> None:
    """List every record with its state and the holder of its lock."""
    folder = scan(check_records(root))
    for run in folder.records:
        who = None if run.state.final else holder(run.place)
        remark = f", {'stale lock of' if who.gone else 'locked by'} {who}" if who else ""
        if run.state.finished and run.place.is_dir():
            remark = ", stored in a folder: the next `run` of the cell moves it to its volume"
        click.echo(f"{run.cell.scale}/{run.cell.name}: {run.state}{remark}")
    _end(folder.records, folder.problems)


@records.command()
@RECORDS
def check(root: Path) -> None:
    """Check that every record can be read and is complete, also for the report. Exit code 1 if not."""
    contents = results.read(check_records(root))
    states = Counter(f"{run.cell.scale}: {run.state.status}" for run in contents.runs)
    for text, count in sorted(states.items()):
        click.echo(f"{text}: {count}")
    _end(contents.runs, (*contents.problems, *contents.benchmark_problems))


@records.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=UserPath())
@RECORDS
@click.option(
    "--replace",
    is_flag=True,
    help="Let finished results of SOURCE take the place of other ones here, which move to the folder `replaced`.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("-v", "--verbose", is_flag=True, help="Also list the records that are present.")
def merge(sources: Sequence[Path], root: Path, replace: bool, dry_run: bool, verbose: bool) -> None:
    """Merge the records of other machines, in the folders SOURCE, into one folder.

    A SOURCE may be an archive of `benchmarks.quarter_hour`. Finished records are merged, and replace unfinished ones.
    Records of benchmarks are merged too. Two different finished results of one cell are a conflict: both stay where
    they are, unless --replace is given. After a kill, the same command continues. Exit code 1: something could not be
    merged.
    """
    decisions: Counter[Decision] = Counter()
    planned: dict[Path, Any] | None = {} if dry_run else None
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(_folder_of(source)) for source in sources]
        if root.resolve() in [folder.resolve() for folder in folders]:
            raise click.UsageError(f"{root} is the target folder; name the sources")
        if not dry_run:
            check_writable(root, "--records")
        merges = [merging.merge(folder, root, replace=replace, dry_run=planned) for folder in folders]
        for decision, path, detail in chain(*merges):
            decisions[decision] += 1
            if verbose or decision is not Decision.SAME:
                line = f"{decision.name} {path}{f': {detail}' if detail else ''}"
                click.echo(reading.printable(line), err=decision.bad)
    done = "would be " if dry_run else ""
    for decision in Decision:
        if decisions[decision]:
            click.echo(f"{decisions[decision]} {decision.value.format(done, done)}")
    if not decisions:
        click.echo(f"no records in {' and '.join(map(str, sources))}: {LAYOUT}")
    sys.exit(1 if any(decision.bad for decision in decisions) else 0)


@contextlib.contextmanager
def _folder_of(source: Path) -> Iterator[Path]:
    """Yield the folder of records: the source itself, or `records` of an archive, which is unpacked temporarily."""
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory() as unpacked:
        try:
            if not source.is_file() or not tarfile.is_tarfile(source):
                raise click.UsageError(
                    f"SOURCE {source} is neither an existing folder, such as reports/records, nor an archive of one"
                )
            fix = "free some space, or set TMPDIR to a folder of another disk"
            with tarfile.open(source) as archive, explain_full_disk(f"to unpack {source}", fix):
                archive.extractall(unpacked, filter="data")
                assert archive.fileobj is not None
                while archive.fileobj.read(BLOCK):  # to the checksum, which is at the end of a compressed file
                    pass
        except StorageError:
            raise
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise click.UsageError(f"{source} cannot be unpacked: {error}; check that the copy is complete") from error
        if not (folder := Path(unpacked) / "records").is_dir():
            raise click.UsageError(f"{source}: this archive contains no folder `records`")
        yield folder


@records.command()
@click.argument("folder", metavar="FOLDER", type=FOLDER)
@RECORDS
def export(folder: Path, root: Path) -> None:
    """Write all records as CSV files into FOLDER, for other statistics.

    runs.csv has one row per cell, epochs.csv one per epoch, lines.csv what probes measured per stage, parts.csv bytes,
    seconds and FLOPs per stage, series.csv every value of every benchmark.
    """
    contents = results.read(check_records(root))
    check_writable(folder, "FOLDER")
    from reproduce.records.frames import Frames  # pandas takes half a second to import

    for table in Frames(contents).export(folder):
        click.echo(f"wrote {table}")
    _end(contents.runs, (*contents.problems, *contents.benchmark_problems))


def _end(records: Sequence[Any], problems: Sequence[Exception]) -> None:
    if not records and not problems:
        click.echo(f"no records found: {LAYOUT}")
    for problem in problems:
        click.echo(f"PROBLEM {problem}", err=True)
    sys.exit(1 if problems else 0)
