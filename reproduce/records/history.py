"""What asv has counted, commit by commit, as it lies in `reports/asv` (asv's own files, its API version 2).

A figure is followed over the commits only where its benchmark stayed the same: asv gives each benchmark a version, and
values of another version than the newest are of another question.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from petra_core import methods
from reproduce.records.benchmarks import BenchmarkError
from reproduce.records.reading import parse_json, printable, read_file

FOLDER = "asv"  # beside the folder of records
KERNELS = "kernels-"  # begins the names of the folders with what is the same on every machine; others have seconds
_METHODS = {repr(method.name): method.title for method in methods.ALL}


@dataclass(frozen=True)
class Tracked:
    """A value of a benchmark at a commit."""

    machine: str  # asv's name of what it was counted on; values are compared within one
    figure: str  # the benchmark, such as "memory.Narrow.track_peak"
    method: str  # title of the method it is of; empty where it is of none
    setting: str  # its other parameters
    date: int  # of the commit, milliseconds since 1970
    commit: str
    value: float  # in the benchmark's own unit


def read(root: Path) -> tuple[tuple[Tracked, ...], tuple[BenchmarkError, ...]]:
    """Every value below `root`, commits in the order of their dates, and the files that are not what asv writes."""
    commits, problems = [], []
    for file in sorted(root.glob(f"{KERNELS}*/*.json")):
        if file.name != "machine.json":
            try:
                run = parse_json(read_file(file), nan=True)
                machine = printable(file.parent.name)
                commits.append((int(run["date"]), str(run["commit_hash"]), machine, dict(_versions(run))))
            except (AttributeError, IndexError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
                problems.append(BenchmarkError(file, f"is not a result of asv: {type(error).__name__}: {error}"))
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
    """The version of its benchmark and the values of every figure of a run, by the name of the figure."""
    columns = {name: place for place, name in enumerate(run["result_columns"])}
    for name, row in run["results"].items():
        yield name, (row[columns["version"]], list(_values(row[columns["result"]], row[columns["params"]])))


def _values(values: list[Any] | None, parameters: list[list[str]]) -> Iterator[tuple[str, str, float]]:
    """Method, other parameters and value; what failed or was skipped has none."""
    for value, chosen in zip(values or (), product(*parameters), strict=False):
        if isinstance(value, int | float) and not math.isnan(value):
            method = next((_METHODS[name] for name in chosen if name in _METHODS), "")
            yield method, ", ".join(name.strip("'") for name in chosen if name not in _METHODS), float(value)
