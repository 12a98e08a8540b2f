"""Share the common part of the benchmarks: rounds, ratios on the screen, and an optional record of the run.

A script measures, passes every value to a `Recorder` and names the ratios of interest. A record is written only with
`--record`, so that an exploratory run cannot replace a published one.
"""

import argparse
import datetime
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.arguments import path, reporting
from reproduce.drawing.timeline import Timeline
from reproduce.records import provenance
from reproduce.records.benchmarks import FOLDER, Benchmark, Comparison, Series, check_name, write
from reproduce.records.reading import UNPRINTABLE
from reproduce.records.record import DEFAULT_ROOT


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options that all benchmarks share.

    Args:
        parser: Parser of the script.
        name: Default name of the record.

    """
    parser.add_argument(
        "--record",
        nargs="?",
        type=record_name,
        const=name,
        metavar="NAME",
        help=f"write a record for the report; choose another name than {name} to keep another machine's record",
    )
    parser.add_argument(
        "--records", type=path, default=DEFAULT_ROOT, help=f"folder of records (default {DEFAULT_ROOT})"
    )


@reporting
def record_name(given: str) -> str:
    """Parse the name of a record, so that a bad name is refused before anything is measured."""
    check_name(given)
    return given


def command(module: str, arguments: Sequence[str] | None) -> str:
    """Return the command line for the record, without `--records`, which does not affect the measurement."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    while "--records" in given:
        place = given.index("--records")
        del given[place : place + 2]
    given = [word for word in given if not word.startswith("--records=")]
    return shlex.join(["python", "-m", module, *given])


def about(docstring: str | None) -> str:
    """Return the text of a script's docstring between its first paragraph (the title) and its usage."""
    return " ".join((docstring or "").partition("Usage")[0].partition("\n\n")[2].split())


def _check_writable(folder: Path) -> None:
    """Check that a record can be written, before anything is measured.

    Raises:
        SystemExit: It cannot be written.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SystemExit(
            f"--records: nothing can be written to {folder} ({error.strerror}); name another folder"
        ) from error


class Recorder:
    """Collect the measured values of a benchmark.

    Args:
        title: Title of the benchmark.
        about: Description of the measurement (see `Benchmark`).
        command: Command line that made the run.
        options: Parsed command line. All options except those of `add_options` become the record's setting.
        device: Measured device, or None for the CPU.

    """

    def __init__(
        self, title: str, about: str, command: str, options: argparse.Namespace, device: torch.device | None = None
    ) -> None:
        self._title, self._about, self._command = title, about, command
        self._name, self._root = options.record, options.records
        if self._name:
            _check_writable(self._root / FOLDER)
        chosen = {name: value for name, value in vars(options).items() if name not in ("record", "records")}
        self.setting = {
            name: value if isinstance(value, bool | int | float) else _text(value) for name, value in chosen.items()
        }
        self._device = device or torch.device("cpu")
        self._values: dict[tuple[str, str, str, str, float | None], list[float]] = {}
        self.comparisons: list[Comparison] = []
        self.notes: list[str] = []
        self.timelines: dict[str, Timeline] = {}
        self._code, patch = provenance.code()  # the loaded code, even if another commit is checked out later
        text = patch.decode("utf-8", "replace")
        self._patch = UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)  # JSON cannot hold arbitrary bytes
        self._load = os.getloadavg()[0]

    def add(self, group: str, name: str, quantity: str, unit: str, value: float, at: float | None = None) -> None:
        """Add a value of this round. `at` is its position on the group's axis if it belongs to a curve."""
        self._values.setdefault((group, name, quantity, unit, at), []).append(value)

    def finish(self, complete: Callable[[Benchmark], Benchmark] | None = None) -> Benchmark:
        """Print the ratios of interest and write the record if one was requested.

        Args:
            complete: Adds what follows from the values: findings and notes.

        Returns:
            The benchmark.

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
        )
        if complete:
            benchmark = complete(benchmark)
        for comparison in benchmark.comparisons:
            print(line(benchmark, comparison))
        for finding in benchmark.findings:
            print(f"  {finding}")
        print(f"  load before {benchmark.load[0]:.2f}, after {benchmark.load[1]:.2f}")
        if self._name is not None:
            print(f"  -> {write(benchmark, self._root)}")
        return benchmark


def line(benchmark: Benchmark, comparison: Comparison) -> str:
    """Format a ratio and its spread for the screen."""
    ratio = benchmark.spread(comparison)
    return (
        f"  {comparison.group}: {comparison.title}, {comparison.quantity}: median {ratio.median:.3f} "
        f"({ratio.lower:.3f} to {ratio.upper:.3f}, {ratio.n} rounds)"
    )


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
