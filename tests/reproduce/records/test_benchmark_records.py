"""Test records of benchmarks: written ones can be read, and damaged ones are reported."""

import dataclasses
from pathlib import Path

import pytest

from reproduce.drawing.timeline import Event, Timeline
from reproduce.exhibits import benchmarks
from reproduce.presentation.content import Role
from reproduce.records.benchmarks import (
    Benchmark,
    Comparison,
    Series,
    read,
    read_all,
    spread,
    write,
)
from reproduce.records.run import RecordError
from tests.fake_records import CLEAN, ENVIRONMENT, PATCH
from tests.sections import made

FAST, SLOW, MEMORY = "fast", "slow", "memory"
RATE = "throughput"


def benchmark(*comparisons: Comparison, name: str = "race", patch: str = "") -> Benchmark:
    """Return a benchmark with ratios fast / slow of 2, 3, 4 within the rounds; medians give 300 / 20 = 15."""
    return Benchmark(
        name=name,
        title="A race",
        about="Two run.",
        command="python -m benchmarks.race --laps 3",
        setting={"laps": 3, "quick": False},
        series=(
            Series("track", FAST, RATE, "laps/s", (20.0, 300.0, 400.0)),
            Series("track", SLOW, RATE, "laps/s", (10.0, 100.0, 100.0)),
            Series("track", FAST, MEMORY, "MB", (5.0,)),
            Series("track", FAST, MEMORY, "MB", (0.0, 7.0), at=2),
        ),
        comparisons=comparisons,
        notes=("It rained.",),
        timelines={"a lap": Timeline((Event(1, ("F", 2, 3), 0.25, 0.5),), 2)},
        environment=ENVIRONMENT,
        code=CLEAN,
        patch=patch,
        load=(0.5, 1.5),
        date="2026-01-02",
    )


def with_slow(*values: float) -> Benchmark:
    slow = Series("track", SLOW, RATE, "laps/s", values)
    return dataclasses.replace(benchmark(FASTER), series=(benchmark().series[0], slow))


FASTER = Comparison("track", RATE, FAST, SLOW)


def test_benchmark_record_round_trip(tmp_path: Path) -> None:
    """A benchmark record reads back unchanged, is replaced by a newer one, and is listed by name."""
    written = benchmark(FASTER, patch=PATCH)
    path = write(written, tmp_path)
    assert path == tmp_path / "benchmarks" / "race.json"
    assert read(path) == written
    again = dataclasses.replace(written, date="2026-01-03", findings=("So.",))
    write(again, tmp_path)
    assert read_all(tmp_path) == ((again,), ())
    assert [file.name for file in path.parent.iterdir()] == ["race.json"]
    path = write(dataclasses.replace(again, name=f"{again.name}-more"), tmp_path)
    assert path.name < f"{again.name}.json"
    assert [record.name for record in read_all(tmp_path)[0]] == [again.name, f"{again.name}-more"]


def test_ratios_are_per_round() -> None:
    """Ratios are taken within rounds, and summarised by median and quartiles."""
    ratios = benchmark().ratios(FASTER)
    assert ratios == [2, 3, 4]
    assert spread(ratios) == (3, 2.5, 3.5, 3)
    assert spread([7]) == (7, 7, 7, 1)


def test_damaged_benchmark_record_is_named_and_others_are_read(tmp_path: Path) -> None:
    """A damaged benchmark record is reported with its path. tests/reproduce/errors.txt contains kinds of damage."""
    write(benchmark(name="good"), tmp_path)
    path = write(benchmark(FASTER), tmp_path)
    path.write_text("{")
    whole, [problem] = read_all(tmp_path)
    assert [b.name for b in whole] == ["good"]
    assert problem.path == path
    with pytest.raises(RecordError, match="is missing"):
        read(tmp_path / "missing.json")
    assert made(benchmarks.EXHIBIT, tmp_path).findings[0].role is Role.ALERT
