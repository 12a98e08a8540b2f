"""Define the command line: `run` a grid, `train` a cell, find a `partition`, and manage `report`, `data` and `records`.

Exit codes: 0 success; 1 something failed; 2 the command line is wrong; 128 + the number of the signal that stopped the
command, such as 130 after Ctrl-C. The same command then resumes or starts again.
"""

import contextlib
import io
import os
import signal
import sys
from typing import Any

import click

import petra_core
from reproduce.commands.data import data
from reproduce.commands.partition import partition
from reproduce.commands.records import records
from reproduce.commands.report import report
from reproduce.commands.run import run
from reproduce.commands.train import train
from reproduce.records.storage import StorageError, explain_full_disk


class _Commands(click.Group):
    """Group commands for any terminal: print characters that the locale lacks as question marks, and obey NO_COLOR.

    A file that cannot be written ends a command with a message.
    """

    def main(self, *arguments: Any, **settings: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                with contextlib.suppress(io.UnsupportedOperation):
                    stream.reconfigure(errors="replace")
        if os.environ.get("NO_COLOR"):
            settings["color"] = False
        return super().main(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with explain_full_disk("to complete this command", "free some space and give the same command again"):
                return super().invoke(ctx)
        except StorageError as error:
            _drop_unwritable_output()
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)


def _drop_unwritable_output() -> None:
    """Drop output for which there is no room; otherwise Python 3.13 fails at its end once more, with exit code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(petra_core.__version__)
def main() -> None:
    """Reproduce PETRA (arXiv 2406.02052) and the methods it competes with."""


for command in (run, train, partition, report, data, records):
    main.add_command(command)
