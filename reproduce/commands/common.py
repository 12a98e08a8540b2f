"""What several commands share: the kinds of their options, and errors of a command line as click shows them."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from reproduce.cells.kinds import CellError
from reproduce.running.devices import DeviceError

__all__ = [
    "COMPILED",
    "CORES",
    "DATA_WORKERS",
    "FOLDER",
    "GRAPHS",
    "THREADS",
    "check_files",
    "check_writable",
    "checked",
    "data_workers_of",
    "say_loudly",
]

T = TypeVar("T")

FOLDER = click.Path(file_okay=False, path_type=Path)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DATA_WORKERS = 16  # of a process, at most: as many as a fast GPU needs for ImageNet
#: Threads of a process unless somebody says otherwise: as many on every machine and in every number of processes, since
#: what several threads add up together is added in another order, and a result has then other bits.
THREADS = 1
#: Help of --cuda-graphs.
GRAPHS = "Record a step once, where it can be, and let the GPU repeat it, stages over so many streams (untried); 0: no."
#: Help of --compile.
COMPILED = "Compile what stages evaluate by torch.compile: other rounding, a minute or more to begin with."


def checked(make: Callable[[], T]) -> T:
    """What `make` returns; a wrong setting ends the command with exit code 2."""
    try:
        return make()
    except (CellError, DeviceError) as error:
        raise click.UsageError(str(error)) from error


def data_workers_of(processes: int) -> int:
    """How many threads decode images for each of so many processes of this machine, unless somebody says otherwise."""
    return max(1, min(DATA_WORKERS, CORES // processes))


def check_writable(folder: Path, option: str) -> None:
    """See that files can be put into a folder, which is made if need be: before the work, not after it.

    Raises:
        click.UsageError: they cannot.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.UsageError(
            f"{option}: nothing can be written to {folder} ({error.strerror}); name another folder, or see to this one"
        ) from error


def check_files(record: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """See before the work that what `train` leaves can be written. Raises: click.UsageError: it cannot."""
    for option, file in (("--output", record), ("--trace", trace), ("--tensorboard", tensorboard)):
        if file is not None:
            check_writable(file.parent, option)


def say_loudly(title: str, lines: Sequence[str], shown: int = 12) -> None:
    """A warning on stderr, with its first lines."""
    click.secho(f"\nWARNING: {title}:", fg="red", bold=True, err=True)
    for line in lines[:shown]:
        click.echo(f"  {line}", err=True)
    if len(lines) > shown:
        click.echo(f"  … and {len(lines) - shown} more", err=True)
