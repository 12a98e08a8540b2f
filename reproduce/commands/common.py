"""What several commands share: the kinds of their options, and errors of a command line as click shows them."""

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
from reproduce.measures.how import BRANCHES, MODULES, STEPS, How
from reproduce.records.record import DEFAULT_ROOT, RecordError, check_free


class UserPath(click.Path):
    """A path as people type it. `~` is expanded, since shells leave it in `--option=~/folder`.

    A path that this user may not look at is refused here, once for all commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: it is not what is wanted, `~NAME` names nobody, or this user may not read it.

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
RECORDS = click.option("--records", "root", type=FOLDER, default=DEFAULT_ROOT, show_default=True, help="Their folder.")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SHOWN = 12  # lines of a list
DATA_WORKERS = 16  # of a process, at most: as many as a fast GPU needs for ImageNet
#: Threads of a process unless somebody says otherwise: as many on every machine and in every number of processes, since
#: what several threads add up together is added in another order, and a result has then other bits.
THREADS = 1


def how_options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Callable[..., None]], Any]:
    """Give a command the options that make a `How`, which it takes as `how`; without --data-workers that has 0."""

    def decorate(command: Callable[..., None]) -> Any:
        @option("--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, help="Folder of prepared data sets.")
        @option(
            "--data-workers",
            type=click.IntRange(1),
            show_default=f"cores / processes of the machine, at most {DATA_WORKERS}",
            help="Threads or processes that decode images, of each process.",
        )
        @option("--checkpoint-minutes", type=Minutes(), default=5, help="Between checkpoints in an epoch.")
        @option(
            "--cuda-graphs",
            type=Streams(),
            is_flag=False,
            flag_value=BRANCHES,
            default=0,
            metavar="[STREAMS]",
            help="Record a step once, where it can be, and let the GPU repeat it, over this many CUDA streams; without "
            "a number, one for each branch of the step; 0: plain steps.",
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
            help="Compile by torch.compile: the modules of the stages, or all operations of recorded steps (with "
            "--cuda-graphs); other rounding, a minute or more to begin with.",
        )
        @functools.wraps(command)
        def with_how(
            *, data_workers: int | None, checkpoint_minutes: float, compiled: str | None, **options: Any
        ) -> None:
            chosen = {name: options.pop(name) for name in ("data_root", "cuda_graphs")}
            if compiled == STEPS and not chosen["cuda_graphs"]:
                raise click.UsageError("--compile steps compiles recorded steps, and none are: add --cuda-graphs")
            seconds = 60 * checkpoint_minutes
            how = How(checkpoint_seconds=seconds, data_workers=data_workers or 0, compiled=compiled or "", **chosen)
            command(how=how, **options)

        return with_how

    return decorate


def shared_by(how: How, processes: int) -> How:
    """How each of so many processes of this machine computes: with its share of the cores to decode images."""
    return dataclasses.replace(how, data_workers=how.data_workers or max(1, min(DATA_WORKERS, CORES // processes)))


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


def listed(lines: Sequence[str]) -> None:
    """Show the first of these lines on stderr, and how many more there are."""
    for line in lines[:SHOWN]:
        click.echo(f"  {line}", err=True)
    if len(lines) > SHOWN:
        click.echo(f"  … and {len(lines) - SHOWN} more", err=True)


def check_files(record: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """Check before the work that what `train` leaves can be written, over nobody else's files.

    Raises:
        click.UsageError: it cannot.

    """
    try:
        check_free(record)
    except RecordError as error:
        raise click.UsageError(f"--output: {error}") from error
    for option, file in (("--output", record), ("--trace", trace), ("--tensorboard", tensorboard)):
        if file is not None:
            check_writable(file.parent, option)
