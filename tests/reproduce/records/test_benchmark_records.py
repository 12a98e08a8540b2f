"""Test records of benchmarks: written ones can be read, and damaged ones are reported."""

import dataclasses
from pathlib import Path

import pytest

from reproduce.exhibits import benchmarks
from reproduce.presentation.content import Role
from reproduce.records.benchmarks import read, read_all, spread, write
from reproduce.records.run import RecordError
from tests.fake_records import FASTER, PATCH, benchmark
from tests.sections import made


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
