"""The common part of the benchmarks: rounds, ratios on the screen, and a record of the run if one is wanted.

A script measures, gives every value to a `Recorder`, and names the ratios of interest; the rest is here. Records are
written with `--record` only: a run that was made to look at something must not replace one that we stand behind.
"""

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from petra_core.prediction.timeline import Timeline
from reproduce.records import provenance
from reproduce.records.benchmarks import Benchmark, Comparison, Goal, Series, check_name, write
from reproduce.records.reading import UNPRINTABLE
from reproduce.records.record import DEFAULT_ROOT


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options that all benchmarks share; `name` is that of the record."""
    parser.add_argument(
        "--record",
        nargs="?",
        type=record_name,
        const=name,
        metavar="NAME",
        help=f"write a record, shown in the report; another name than {name} keeps one of another machine beside it",
    )
    parser.add_argument(
        "--records", type=Path, default=DEFAULT_ROOT, help=f"folder of records (default {DEFAULT_ROOT})"
    )


def record_name(given: str) -> str:
    """Parse the name of a record: refused here, and not when everything has been measured."""
    try:
        check_name(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


def command(module: str, arguments: Sequence[str] | None) -> str:
    """The command that was given, for the record; where the record was put is nobody's business."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    while "--records" in given:
        place = given.index("--records")
        del given[place : place + 2]
    given = [word for word in given if not word.startswith("--records=")]
    return shlex.join(["python", "-m", module, *given])


def about(docstring: str | None) -> str:
    """The part of a script's docstring between its first paragraph, the title, and its usage."""
    return " ".join((docstring or "").partition("Usage")[0].partition("\n\n")[2].split())


class Recorder:
    """Collects the measured values of a benchmark.

    Args:
        title, about, command: see `Benchmark`.
        options: of the command line, with those of `add_options`; all but these are the record's setting.
        device: that was measured.

    """

    def __init__(
        self, title: str, about: str, command: str, options: argparse.Namespace, device: torch.device | None = None
    ) -> None:
        self._title, self._about, self._command = title, about, command
        self._name, self._root = options.record, options.records
        chosen = {name: value for name, value in vars(options).items() if name not in ("record", "records")}
        self.setting = {
            name: value if isinstance(value, bool | int | float) else _text(value) for name, value in chosen.items()
        }
        self._device = device or torch.device("cpu")
        self._values: dict[tuple[str, str, str, str, float | None], list[float]] = {}
        self.comparisons: list[Comparison] = []
        self.goals: list[Goal] = []
        self.notes: list[str] = []
        self.timelines: dict[str, Timeline] = {}
        self._code, patch = provenance.code()  # what is loaded now, whatever is checked out meanwhile
        text = provenance.patch_bytes(patch).decode("utf-8", "replace")
        self._patch = UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)  # in JSON it cannot be byte for byte
        self._load = os.getloadavg()[0]

    def add(self, group: str, name: str, quantity: str, unit: str, value: float, at: float | None = None) -> None:
        """Add a value of this round; `at` a place of the group's axis if it is one of a curve."""
        self._values.setdefault((group, name, quantity, unit, at), []).append(value)

    def finish(self, complete: Callable[[Benchmark], Benchmark] | None = None) -> Benchmark:
        """Print the ratios of interest; write the record if it was asked for.

        Args:
            complete: adds what follows from the values: fits and their goals, findings, notes.

        """
        benchmark = Benchmark(
            name=self._name or "unnamed",
            title=self._title,
            about=self._about,
            command=self._command,
            setting=self.setting,
            series=tuple(
                Series(group, name, quantity, unit, tuple(values), at)
                for (group, name, quantity, unit, at), values in self._values.items()
            ),
            comparisons=tuple(self.comparisons),
            notes=tuple(self.notes),
            timelines=self.timelines,
            environment=provenance.environment(self._device),
            code=self._code,
            patch=self._patch,
            load=(self._load, os.getloadavg()[0]),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            goals=tuple(self.goals),
        )
        if complete:
            benchmark = complete(benchmark)
        for sought in (*benchmark.comparisons, *benchmark.goals):
            print(line(benchmark, sought))
        for finding in benchmark.findings:
            print(f"  {finding}")
        print(f"  load before {benchmark.load[0]:.2f}, after {benchmark.load[1]:.2f}")
        if self._name is not None:
            print(f"  -> {write(benchmark, self._root)}")
        return benchmark


def line(benchmark: Benchmark, sought: Comparison | Goal) -> str:
    """What is said on the screen of a ratio or a value: its spread, and whether the aim is reached."""
    ratio = benchmark.spread(sought)
    verdict = {None: "", True: f"; {sought.aim}: holds", False: f"; {sought.aim}: DOES NOT HOLD"}
    return (
        f"  {sought.group}: {sought.title}, {sought.quantity}: median {ratio.median:.3f}{benchmark.unit(sought)} "
        f"({ratio.lower:.3f} to {ratio.upper:.3f}, {ratio.n} rounds){verdict[sought.holds(ratio.median)]}"
    )


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
