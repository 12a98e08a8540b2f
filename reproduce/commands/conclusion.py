"""Print a summary of a run and warn about problems."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.commands import summary
from reproduce.commands.common import print_lines
from reproduce.grids.scales import Scale
from reproduce.records.broken import near_chance
from reproduce.records.record import DEFAULT_ROOT
from reproduce.records.run import DIVERGED, OUT_OF_MEMORY, Status
from reproduce.running.runner import GridOutcome
from reproduce.text import count


def conclude(scale: Scale, outcome: GridOutcome, root: Path) -> NoReturn:
    """Print the summary and the command that shows the records under `root`, and exit with the outcome's code."""
    click.echo("\n" + summary.table(outcome.states))
    states, problems = outcome.states.items(), outcome.problems
    short = list(_shortfalls(scale, outcome))
    at = " and ".join(str(k) for k in scale.target_accumulations)
    _warn(f"at k = {at} did not exceed {scale.target_accuracy:g} % test accuracy", short)
    diverged = [cell.slug for cell, state in states if state.reason == DIVERGED]
    _warn("diverged, which is a result", diverged)
    _warn("have no result", list(_once_each(problems)), len(problems))
    wrecks = [
        f"{cell.slug}: {state.reached}"
        for cell, state in states
        if isinstance(cell, TrainedCell)
        and state.status is Status.DONE
        and near_chance(cell, state.result.get("test_accuracy", 100.0))
    ]
    _warn("broken: at most twice the test accuracy of a guess", wrecks)
    unfinished = [f"{cell.slug}: {state}" for cell, state in states if not state.final and cell not in problems]
    _warn("unfinished; the same command resumes", unfinished)
    memory = [cell.slug for cell, state in states if state.reason == OUT_OF_MEMORY]
    _warn("ran out of memory; --retry-failed runs them again, and fewer --jobs give each more memory of a GPU", memory)
    if not short and outcome.complete:
        met = " and met the expected accuracy" if scale.target_accumulations and not (diverged or wrecks) else ""
        click.echo(f"\nNothing is missing: {count(len(states), 'cell')} finished{met}.")
    folder = "" if root == DEFAULT_ROOT else f" --records {shlex.quote(str(root))}"
    click.echo(f"\nShow the report with: python -m reproduce report --open{folder}")
    sys.exit(outcome.exit_code)


def _shortfalls(scale: Scale, outcome: GridOutcome) -> Iterator[str]:
    for cell, state in outcome.states.items():
        if scale.falls_short(cell, state, state.result.get("test_accuracy")):
            target = scale.own_targets.get(cell.model) if isinstance(cell, TrainedCell) else None
            expected = f" (expected: above {target:g} %)" if target is not None else ""
            yield f"{cell.slug}: {state.reached}{expected}"


def _warn(what: str, lines: list[str], cells: int | None = None) -> None:
    """Print a warning for a number of cells on stderr, with its first lines; print nothing if there is no line."""
    if lines:
        number = count(len(lines) if cells is None else cells, "cell")
        click.secho(f"\nWARNING: {number} {what}:", fg="red", bold=True, err=True)
        print_lines(lines)


def _once_each(problems: dict[Cell, str]) -> Iterator[str]:
    """Yield each problem once, with the cells that it affects. All cells of a missing data set share one problem."""
    cells: dict[str, list[Cell]] = {}
    for cell, text in problems.items():
        cells.setdefault(text, []).append(cell)
    for text, having in cells.items():
        yield f"{having[0].slug}{f' and {len(having) - 1} more' if len(having) > 1 else ''}: {text}"
