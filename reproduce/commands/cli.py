"""The command line: `run` a grid, `train` one cell, share it by a `partition`, see to `report`, `data` and `records`.

Exit codes: 0 all that was asked for is there; 1 something failed; 2 the command line is wrong; 130 stopped by
Ctrl-C, after which the same command goes on.
"""

import contextlib
import io
import os
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


class _AnyLocale(click.Group):
    """Commands for every terminal: a character that the locale lacks is a question mark, and NO_COLOR is obeyed."""

    def main(self, *arguments: Any, **settings: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                with contextlib.suppress(io.UnsupportedOperation):
                    stream.reconfigure(errors="replace")
        if os.environ.get("NO_COLOR"):
            settings["color"] = False
        return super().main(*arguments, **settings)


@click.group(cls=_AnyLocale, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(petra_core.__version__)
def main() -> None:
    """Reproduce PETRA (arXiv 2406.02052) and the methods it competes with."""


for command in (run, train, partition, report, data, records):
    main.add_command(command)
