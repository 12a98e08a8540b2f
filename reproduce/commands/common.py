"""Share what several commands need: option types, and errors of the command line as click shows them."""

import dataclasses
import errno
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from reproduce.cells import catalogue
from reproduce.commands.options import Minutes, Streams
from reproduce.measures.run_options import BRANCHES, MODULES, STEPS, RunOptions
from reproduce.records.record import DEFAULT_ROOT, RecordError, check_free


class UserPath(click.Path):
    """Accept a path and expand `~`, which shells do not expand in `--option=~/folder`.

    A path that this user may not read is refused here, once for all commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: The path does not fit the option, `~NAME` names no user, or this user may not read it.

        """
        try:
            expanded = Path(value).expanduser()
        except RuntimeError:
            self.fail(f"{str(value)!r} begins with the home folder of a user that does not exist", param, ctx)
        try:
            closed = expanded.is_dir() and not os.access(expanded, os.R_OK | os.X_OK)
        except OSError as error:
            closed = error.errno in (errno.EACCES, errno.EPERM)
        if closed:
            fix = "let this user read it (docs/running.md, several users), or name another one"
            self.fail(f"no permission to read {str(expanded)!r}: {fix}", param, ctx)
        return super().convert(expanded, param, ctx)


FOLDER = UserPath(file_okay=False)
FILE = UserPath(dir_okay=False)
RECORDS = click.option(
    "--records", "root", type=FOLDER, default=DEFAULT_ROOT, show_default=True, help="Folder of records."
)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SHOWN = 12  # lines of a list
DATA_WORKERS = 16  # at most, per process: enough for a fast GPU on ImageNet
#: Default number of threads of a process. It is the same on every machine and for every number of processes, since
#: several threads add in another order, which changes the last bits of a result.
THREADS = 1


def how_options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Callable[..., None]], Any]:
    """Add the options of a `RunOptions` to a command, which receives it as `how`; `data_workers` is 0 if not given."""

    def decorate(command: Callable[..., None]) -> Any:
        @option("--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, help="Folder of prepared data sets.")
        @option(
            "--data-workers",
            type=click.IntRange(1),
            show_default=f"cores / processes of the machine, at most {DATA_WORKERS}",
            help="Decoding threads or processes of each process.",
        )
        @option("--checkpoint-minutes", type=Minutes(), default=5, help="Minutes between checkpoints within an epoch.")
        @option(
            "--cuda-graphs",
            type=Streams(),
            is_flag=False,
            flag_value=BRANCHES,
            default=0,
            metavar="[STREAMS]",
            help="Record a step once, if possible, and let the GPU replay it over this many CUDA streams. Without "
            "a number, use one stream per branch of the step; 0 runs plain steps.",
        )
        @option(
            "--compile",
            "compiled",
            type=click.Choice([MODULES, STEPS]),
            is_flag=False,
            flag_value=MODULES,
            default=None,
            show_default="nothing",
            metavar="[modules|steps]",
            help="Compile with torch.compile: the modules of the stages, or all operations of recorded steps (with "
            "--cuda-graphs). Rounds differently, and takes a minute or more at the start.",
        )
        @functools.wraps(command)
        def with_how(
            *, data_workers: int | None, checkpoint_minutes: float, compiled: str | None, **options: Any
        ) -> None:
            chosen = {name: options.pop(name) for name in ("data_root", "cuda_graphs")}
            if compiled == STEPS and not chosen["cuda_graphs"]:
                raise click.UsageError("--compile steps requires recorded steps: add --cuda-graphs")
            seconds = 60 * checkpoint_minutes
            how = RunOptions(
                checkpoint_seconds=seconds, data_workers=data_workers or 0, compiled=compiled or "", **chosen
            )
            command(how=how, **options)

        return with_how

    return decorate


def share_cores(options: RunOptions, processes: int) -> RunOptions:
    """Return the options for each of `processes` processes on this machine: its share of the cores decodes images."""
    return dataclasses.replace(
        options, data_workers=options.data_workers or max(1, min(DATA_WORKERS, CORES // processes))
    )


def check_writable(folder: Path, option: str) -> None:
    """Check before the work that files can be written to a folder, and create it if needed.

    Raises:
        click.UsageError: The folder is not writable.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.UsageError(
            f"{option}: cannot write to {folder} ({error.strerror}); choose another folder, or fix this one"
        ) from error


def listed(lines: Sequence[str]) -> None:
    """Print the first of these lines on stderr, and the number of further ones."""
    for line in lines[:SHOWN]:
        click.echo(f"  {line}", err=True)
    if len(lines) > SHOWN:
        click.echo(f"  … and {len(lines) - SHOWN} more", err=True)


def check_files(record: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """Check before the work that `train` can write its files, and that they replace no files of other programs.

    Raises:
        click.UsageError: A file cannot be written.

    """
    try:
        check_free(record)
    except RecordError as error:
        raise click.UsageError(f"--output: {error}") from error
    for option, file in (("--output", record), ("--trace", trace), ("--tensorboard", tensorboard)):
        if file is not None:
            check_writable(file.parent, option)
