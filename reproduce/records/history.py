"""Read what asv has counted, commit by commit, from `reports/asv` (asv's files, API version 2).

A figure is followed over the commits only while its benchmark stays the same. asv gives each benchmark a version, and
values of an older version answer another question.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from petra_core import methods
from reproduce.records.benchmarks import AGAIN
from reproduce.records.reading import parse_json, printable, read_file
from reproduce.records.run import RecordError

FOLDER = "asv"  # next to the folder of records
KERNELS = "kernels-"  # prefix of folders with machine-independent values; other folders contain seconds
_METHODS = {repr(method.name): method.title for method in methods.ALL}


@dataclass(frozen=True)
class Tracked:
    """A value of a benchmark at a commit.

    Attributes:
        machine: asv's name of the machine. Values are compared within one machine.
        figure: Name of the benchmark, such as "memory.Narrow.track_peak".
        method: Title of the method; empty if the benchmark has none.
        setting: Other parameters of the benchmark.
        date: Date of the commit, in milliseconds since 1970.
        commit: Hash of the commit.
        value: Value in the benchmark's unit.

    """

    machine: str
    figure: str
    method: str
    setting: str
    date: int
    commit: str
    value: float


def read(root: Path) -> tuple[tuple[Tracked, ...], tuple[RecordError, ...]]:
    """Read every value below `root`, ordered by the date of the commit, and return an error for each foreign file."""
    commits, problems = [], []
    for file in sorted(root.glob(f"{KERNELS}*/*.json")):
        if file.name != "machine.json":
            try:
                run = parse_json(read_file(file), nan=True)
                machine = printable(file.parent.name)
                commits.append((int(run["date"]), str(run["commit_hash"]), machine, dict(_versions(run))))
            except (AttributeError, IndexError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
                problems.append(RecordError(file, f"is not a result of asv: {type(error).__name__}: {error}", AGAIN))
    commits.sort(key=lambda commit: commit[0])
    newest = {name: version for *_, figures in commits for name, (version, _) in figures.items()}
    values = tuple(
        Tracked(machine, name, method, setting, date, commit, value)
        for date, commit, machine, figures in commits
        for name, (version, row) in figures.items()
        if version == newest[name]
        for method, setting, value in row
    )
    return values, tuple(problems)


def _versions(run: dict[str, Any]) -> Iterator[tuple[str, tuple[str, list[tuple[str, str, float]]]]]:
    """Yield the name of every figure of a run with the version of its benchmark and its values."""
    columns = {name: place for place, name in enumerate(run["result_columns"])}
    for name, row in run["results"].items():
        yield name, (row[columns["version"]], list(_values(row[columns["result"]], row[columns["params"]])))


def _values(values: list[Any] | None, parameters: list[list[str]]) -> Iterator[tuple[str, str, float]]:
    """Yield method, other parameters and value. Failed and skipped benchmarks have no value."""
    for value, chosen in zip(values or (), product(*parameters), strict=False):
        if isinstance(value, int | float) and not math.isnan(value):
            method = next((_METHODS[name] for name in chosen if name in _METHODS), "")
            yield method, ", ".join(name.strip("'") for name in chosen if name not in _METHODS), float(value)
