"""What several commands share: the kinds of their options, and errors of a command line as click shows them.

This module exports COMPILED, CORES, FOLDER, GRAPHS, checked, say_loudly.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from reproduce.cells import CellError
from reproduce.devices import DeviceError

__all__ = ["COMPILED", "CORES", "FOLDER", "GRAPHS", "checked", "say_loudly"]

T = TypeVar("T")

FOLDER = click.Path(file_okay=False, path_type=Path)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
#: Help of --cuda-graphs.
GRAPHS = "Record a step once and let the GPU repeat it, with the stages over so many streams (never tried yet); 0: no."
#: Help of --compile.
COMPILED = "Compile what stages evaluate by torch.compile: other rounding, a minute or more to begin with."


def checked(make: Callable[[], T]) -> T:
    """What `make` returns; a wrong setting ends the command with exit code 2."""
    try:
        return make()
    except (CellError, DeviceError) as error:
        raise click.UsageError(str(error)) from error


def say_loudly(title: str, lines: Sequence[str], shown: int = 12) -> None:
    """A warning on stderr, with its first lines."""
    click.secho(f"\nWARNING: {title}:", fg="red", bold=True, err=True)
    for line in lines[:shown]:
        click.echo(f"  {line}", err=True)
    if len(lines) > shown:
        click.echo(f"  … and {len(lines) - shown} more", err=True)
