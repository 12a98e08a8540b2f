"""The end of `run`: what came out, and loudly whatever is not as it should be."""

import sys
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import NoReturn

import click

from reproduce.cells.kinds import Cell
from reproduce.commands import summary
from reproduce.commands.common import say_loudly
from reproduce.grids.scales import Scale
from reproduce.records.record import DEFAULT_ROOT
from reproduce.running.runner import Outcome
from reproduce.words import count

__all__ = ["conclude"]


def conclude(scale: Scale, outcome: Outcome, root: Path) -> NoReturn:
    """Print the summary, say how to look at the records under `root`, and end with the outcome's exit code."""
    click.echo()
    click.echo(summary.table(outcome))
    short = summary.shortfalls(scale, outcome)
    if short:
        at = " and ".join(str(k) for k in scale.target_accumulations)
        say_loudly(f"{_cells(short)} at k = {at} not above {scale.target_accuracy:g} % test accuracy", short)
    diverged = [cell.slug for cell, state in outcome.states.items() if state.reason == "diverged"]
    if diverged:
        say_loudly(f"{_cells(diverged)} diverged, which is a result", diverged)
    if outcome.problems:
        say_loudly(f"{_cells(outcome.problems)} without a result", list(_once_each(outcome.problems.items())))
    unfinished = [f"{c.slug}: {s}" for c, s in outcome.states.items() if not s.final and c not in outcome.problems]
    if unfinished:
        say_loudly(f"{_cells(unfinished)} unfinished; the same command goes on", unfinished)
    memory = [cell.slug for cell, state in outcome.states.items() if state.reason == "out of memory"]
    if memory:
        say_loudly(f"{_cells(memory)} ran out of memory; --retry-failed tries again", memory)
    if not short and outcome.complete:
        click.echo(f"\nNothing is missing: {_cells(outcome.states)} with a result, every one as good as expected.")
    folder = "" if root == DEFAULT_ROOT else f" --records {root}"
    click.echo(f"\nTo look at it: python -m reproduce report --open{folder}")
    sys.exit(outcome.exit_code)


def _cells(listed: Sized) -> str:
    return count(len(listed), "cell")


def _once_each(problems: Iterable[tuple[Cell, str]]) -> Iterable[str]:
    """Each problem with the cells that have it: a data set that is missing is missing for all of them."""
    cells: dict[str, list[Cell]] = {}
    for cell, text in problems:
        cells.setdefault(text, []).append(cell)
    for text, having in cells.items():
        yield f"{having[0].slug}{f' and {len(having) - 1} more' if len(having) > 1 else ''}: {text}"
