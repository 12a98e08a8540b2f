"""Share what several commands need: the option `--records`, the cores of this machine, and checks before the work."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from reproduce.commands.options import FOLDER
from reproduce.records.record import DEFAULT_ROOT, check_free
from reproduce.records.run import RecordError

RECORDS = click.option(
    "--records", "root", type=FOLDER, default=DEFAULT_ROOT, show_default=True, help="Folder of records."
)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LISTED = 12  # lines of a list that are printed


def check_records(root: Path) -> Path:
    """Return the folder of records. Raise UsageError if it does not exist."""
    if not root.is_dir():
        raise click.UsageError(f"there is no folder {root}: give --records the same folder as to `run`")
    return root


def check_writable(folder: Path, option: str) -> None:
    """Check before the work that files can be written to a folder, or that it can be created.

    Raises:
        click.UsageError: The folder is not writable.

    """
    try:
        # A link whose target is missing, such as a disk that is not mounted, does not exist, and no folder can be made.
        there = (path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        with tempfile.TemporaryFile(dir=next(there)):
            pass
    except OSError as error:
        raise click.UsageError(
            f"{option}: cannot write to {folder} ({error.strerror}); choose another folder, or fix this one"
        ) from error


def print_lines(lines: Sequence[str]) -> None:
    """Print the first of these lines on stderr, and the number of further ones."""
    for line in lines[:LISTED]:
        click.echo(f"  {line}", err=True)
    if len(lines) > LISTED:
        click.echo(f"  … and {len(lines) - LISTED} more", err=True)


def check_files(record: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """Check before the work that `train` can write its files, and that they replace no files of other programs.

    Raises:
        click.UsageError: A file cannot be written.

    """
    try:
        check_free(record)
    except (RecordError, OSError) as error:
        raise click.UsageError(f"--output: {error}") from error
    for option, file in (("--output", record), ("--trace", trace), ("--tensorboard", tensorboard)):
        if file is not None:
            check_writable(file.parent, option)
