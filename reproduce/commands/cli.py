"""The command line: `run` a grid, `train` one cell, share it by a `partition`, see to `report`, `data` and `records`.

Exit codes: 0 all that was asked for is there; 1 something failed; 2 the command line is wrong; 130 stopped by
Ctrl-C, after which the same command goes on.
"""

import click

import petra_core
from reproduce.commands.data import data
from reproduce.commands.partition import partition
from reproduce.commands.records import records
from reproduce.commands.report import report
from reproduce.commands.run import run
from reproduce.commands.train import train


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(petra_core.__version__)
def main() -> None:
    """Reproduce PETRA (arXiv 2406.02052) and the methods it competes with."""


for command in (run, train, partition, report, data, records):
    main.add_command(command)
