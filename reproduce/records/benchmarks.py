"""Store results of speed and memory benchmarks: one file each, with every measured value.

The obvious record of a benchmark is a table of means. It cannot be judged: other load slows down one contestant for a
minute, and the mean hides it. So contestants are measured in turn, in rounds, and every value of every round is kept.
Ratios are taken within a round; their median and quartiles are computed when they are shown. Older files also have
goals, which are ignored.

    <root>/benchmarks/<name>.json

A script in benchmarks/ writes a benchmark, and `reproduce.exhibits.benchmarks` shows every one in the same form, so a
new benchmark needs nothing except its script.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reproduce.drawing.timeline import Event, Timeline
from reproduce.records.reading import CODE, ENVIRONMENT, SETTING, convert, problem
from reproduce.records.run import SCHEMA, RecordError, read_json
from reproduce.records.storage import write_json

FOLDER = "benchmarks"  # below the folder of records
LARGEST_TIMELINE = 10_000  # devices
LARGEST_NUMBER = 1e100
AGAIN = "It was not changed; run the benchmark again to replace it"  # the fix of errors in its file

#: Quantities that several scripts measure, or that an exhibit looks up by name.
THROUGHPUT = "throughput"
PEAK_OF_ALL = "peak memory, all processes"
ALLOCATED, PEAK_PREDICTED = "allocated peak", "predicted peak"
SIDE_BITS = "side bits"
SECONDS = "time of a step"
LARGEST_PREDICTED, LARGEST_FOUND = "largest batch, predicted", "largest batch, found"


@dataclass(frozen=True)
class Series:
    """Values of one contestant, one per round.

    Attributes:
        group: Property that compared contestants share, such as the network. Ratios are taken within a group.
        name: Name of the contestant.
        quantity: Measured quantity, such as "throughput".
        unit: Unit, such as "images/s".
        values: One value per round, finite and not negative.
        at: Position on the group's axis for a value of a curve, else None.

    """

    group: str
    name: str
    quantity: str
    unit: str
    values: tuple[float, ...]
    at: float | None = None

    def __post_init__(self) -> None:
        for text in (self.group, self.name, self.quantity, self.unit):
            if "$" in text:
                raise ValueError(f"{text!r} contains $, between two of which matplotlib expects a formula")
        if self.at is not None and not self.at > 0:
            raise ValueError(f"the axis of a curve is logarithmic: at must be above 0, got {self.at}")
        if (highest := max(*self.values, self.at or 0, 0)) > LARGEST_NUMBER:
            raise ValueError(f"{highest:g} cannot be drawn, expected at most {LARGEST_NUMBER:g}")
        if not self.values or not all(math.isfinite(value) and value >= 0 for value in self.values):
            raise ValueError(
                f"{self.quantity} of {self.name} ({self.group}) needs finite values of at least 0, got {self.values}"
            )


@dataclass(frozen=True)
class Comparison:
    """A ratio of interest, of the first contestant over the second."""

    group: str
    quantity: str
    first: str
    second: str

    @property
    def title(self) -> str:
        """Title in tables."""
        return f"{self.first} over {self.second}"


class Spread(NamedTuple):
    """Median and quartiles of n values."""

    median: float
    lower: float
    upper: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one value. Quartiles are interpolated linearly."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper, len(values))


@dataclass(frozen=True)
class Benchmark:
    """One run of a benchmark.

    Attributes:
        name: Name of its file: letters, digits, hyphens.
        title: Title in the report.
        about: What was measured and how, in a few sentences.
        command: Command that repeats it.
        setting: Chosen options by name.
        series: Measured values.
        comparisons: Ratios of interest.
        notes: Notes of the report.
        timelines: Runs to draw, by title.
        environment: As in a cell's record (`reproduce.records.provenance`).
        code: As in a cell's record.
        patch: As in a cell's record.
        load: Average number of runnable processes in the last minute, before and after.
        date: Date of the run, as YYYY-MM-DD.
        findings: Sentences of its script for the report's summary.

    Raises:
        ValueError: The name cannot be that of a file, a series repeats, or a comparison has no ratio in some round.

    """

    name: str
    title: str
    about: str
    command: str
    setting: Mapping[str, str | float | bool | None]
    series: tuple[Series, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    timelines: Mapping[str, Timeline]
    environment: Mapping[str, Any]
    code: Mapping[str, Any]
    patch: str
    load: tuple[float, float]
    date: str
    findings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        names = [(series.group, series.name, series.quantity, series.at) for series in self.series]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"benchmark {self.name}: {repeated} was given twice")
        for comparison in self.comparisons:
            self.ratios(comparison)

    def spread(self, comparison: Comparison) -> Spread:
        """Return median and quartiles of the ratios of a comparison."""
        return spread(self.ratios(comparison))

    def ratios(self, comparison: Comparison) -> list[float]:
        """Return the ratios first over second, round by round.

        Raises:
            ValueError: The values cannot be compared.

        """
        first, second = (self._find(comparison, name) for name in (comparison.first, comparison.second))
        if len(first.values) != len(second.values):
            raise ValueError(
                f"{first.name} has {len(first.values)} values and {second.name} {len(second.values)} ({first.group}, "
                f"{first.quantity}): a ratio needs values of the same rounds"
            )
        if 0 in second.values:
            raise ValueError(f"{second.name} ({second.group}, {second.quantity}) has the value 0: no ratio")
        return [a / b for a, b in zip(first.values, second.values, strict=True)]

    def _find(self, comparison: Comparison, name: str) -> Series:
        for series in self.series:
            place = (series.group, series.name, series.quantity, series.at)
            if place == (comparison.group, name, comparison.quantity, None):
                return series
        raise ValueError(f"{comparison.quantity} of {name} ({comparison.group}) is compared, but was not measured")


def check_name(name: str) -> None:
    """Check that a name can be that of a file.

    Raises:
        ValueError: It cannot.

    """
    if not name.replace("-", "").isalnum():
        raise ValueError(f"the name of a benchmark has letters, digits and hyphens, got {name!r}")


def write(benchmark: Benchmark, root: Path) -> Path:
    """Write a benchmark's file below the folder of records, replacing an older one.

    Returns:
        The path of the file.

    Raises:
        StorageFullError: There was no room.

    """
    path = root / FOLDER / f"{benchmark.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    timelines = {title: _timeline(timeline) for title, timeline in benchmark.timelines.items()}
    write_json(path, {"schema": SCHEMA, **dataclasses.asdict(benchmark), "timelines": timelines})
    return path


def read(path: Path) -> Benchmark:
    """Read one file.

    Raises:
        RecordError: It is missing, damaged or of another version.

    """
    values = read_json(path, AGAIN)
    try:
        return _benchmark(path.stem, values)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise RecordError(path, f"is damaged: {type(error).__name__}: {error}", AGAIN) from error


def read_all(root: Path) -> tuple[tuple[Benchmark, ...], tuple[RecordError, ...]]:
    """Read all benchmarks below a folder of records, ordered by name, and return an error for each unreadable one."""
    benchmarks: list[Benchmark] = []
    problems: list[RecordError] = []
    for path in sorted((root / FOLDER).glob("*.json"), key=lambda path: path.stem):
        try:
            benchmarks.append(read(path))
        except RecordError as error:
            problems.append(error)
    return tuple(benchmarks), tuple(problems)


def _benchmark(name: str, values: Mapping[str, Any]) -> Benchmark:
    timelines = {title: _read_timeline(timeline) for title, timeline in values["timelines"].items()}
    benchmark: Benchmark = convert(Benchmark, {**values, "timelines": timelines}, "the benchmark")
    if benchmark.name != name:
        raise ValueError(f"it belongs to {benchmark.name!r}")
    environment = {**dict.fromkeys(benchmark.environment, SETTING), **ENVIRONMENT}
    for part, found, shape in (("environment", benchmark.environment, environment), ("code", benchmark.code, CODE)):
        if wrong := problem(found, shape):
            raise ValueError(f"{part}: {wrong}")
    contestants = str(benchmark.setting.get("contestants", ""))
    if lacking := [name for name in contestants.split("; ") if name and name not in benchmark.setting]:
        raise ValueError(f"setting: contestants contains {lacking[0]!r}, but its version is missing")
    return benchmark


def _timeline(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline with one line per event: device, kind, stage, number, begin and end in seconds."""
    events = [f"{e.device} {' '.join(map(str, e.name))} {e.begin:.6f} {e.end:.6f}" for e in timeline.events]
    return {"devices": timeline.devices, "events": events}


def _read_timeline(values: Mapping[str, Any]) -> Timeline:
    events, devices = [], convert(int, values["devices"], "devices")
    if not 0 < devices <= LARGEST_TIMELINE:
        raise ValueError(f"a timeline has {devices} devices, expected 1 to {LARGEST_TIMELINE}")
    for line in values["events"]:
        device, kind, stage, number, begin, end = line.split()
        event = Event(int(device), (kind, int(stage), int(number)), float(begin), float(end))
        if not (0 <= event.device < devices and math.isfinite(event.begin) and event.begin <= event.end < math.inf):
            raise ValueError(f"the event {line!r} has an unknown device, or does not end after it begins")
        events.append(event)
    if events and not max(event.end for event in events) > 0:
        raise ValueError("all events of a timeline end at 0 s")
    return Timeline(tuple(events), devices)
