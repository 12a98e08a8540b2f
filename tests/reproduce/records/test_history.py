"""Test asv's history: reading its files, skipping incomparable values, and reporting changes."""

import json
from pathlib import Path

from petra_core import methods
from reproduce.exhibits import history as exhibit
from reproduce.exhibits._exhibit import section
from reproduce.presentation.content import Figure, Table
from reproduce.records.frames import Frames
from reproduce.records.results import read

NAMES = [[f"'{methods.PETRA.name}'", f"'{methods.DSP.name}'"], ["10", "30"]]


def write(
    root: Path,
    number: int,
    values: list[float | None] | None,
    version: str = "1",
    name: str = "cost.track_bytes",
    machine: str = "kernels-avx2",
) -> None:
    """Write the file of a commit, as asv does."""
    folder = root / "asv" / machine
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text("{}")
    run = {
        "commit_hash": f"{number:040}",
        "date": 1_000 * number,
        "result_columns": ["result", "params", "version"],
        "results": {name: [values, NAMES, version]},
        "version": 2,
    }
    (folder / f"{99 - number}-env.json").write_text(json.dumps(run))


def frames(root: Path) -> Frames:
    return Frames(read(root / "records"))


def test_change_is_listed_with_its_commit(tmp_path: Path) -> None:
    """A change of a tracked value is listed with its commit, both values and the percentage."""
    for number, petra in enumerate((100.0, 100.5, 150.0), start=1):
        write(tmp_path, number, [petra, 7.0, 3.0, None])
    made = section(exhibit.EXHIBIT, frames(tmp_path))
    (table,) = (block for block in made.blocks if isinstance(block, Table))
    (change,) = table.rows
    expected = ["cost.track_bytes", "PETRA", "3", "0000000000", "100.50", "150.00", "+49.3"]
    assert [entry.text for entry in change] == expected
    assert any(isinstance(block, Figure) for block in made.blocks)
    assert (
        made.sentence
        == "Over 3 commits 0 of 1 figure stayed within 1%; cost.track_bytes is at 1.17 of its first value."
    )


def test_value_missing_at_newest_commit_is_counted_only(tmp_path: Path) -> None:
    """A tracked value without a measurement at the newest commit is counted, but has no present ratio."""
    write(tmp_path, 1, [100.0] * 4)
    write(tmp_path, 2, [200.0] * 4)
    write(tmp_path, 3, [1.0] * 4, name="cost.track_other")
    made = section(exhibit.EXHIBIT, frames(tmp_path))
    assert made.sentence == "Over 3 commits 1 of 2 figures stayed within 1%."


def test_times_and_skipped_values_are_excluded(tmp_path: Path) -> None:
    """Times of a machine and skipped values are not part of the history."""
    write(tmp_path, 1, [100.0, float("nan"), 3.0, None])
    write(tmp_path, 1, [0.1] * 4, name="tick.time_step", machine="host")
    write(tmp_path, 2, [0.2] * 4, name="tick.time_step", machine="host")
    values = frames(tmp_path).results.history
    assert [(value.figure, value.value) for value in values] == [("cost.track_bytes", 100.0), ("cost.track_bytes", 3.0)]


def test_slow_drift_is_reported(tmp_path: Path) -> None:
    """A drift in steps that are too small to be listed is reported."""
    for number in range(1, 6):
        write(tmp_path, number, [100.0 * 1.006**number] * 4)
    made = section(exhibit.EXHIBIT, frames(tmp_path))
    assert not any(block.rows for block in made.blocks if isinstance(block, Table))
    assert (
        made.sentence
        == "Over 5 commits 0 of 1 figure stayed within 1%; cost.track_bytes is at 1.02 of its first value."
    )


def test_values_of_older_benchmark_versions_are_excluded(tmp_path: Path) -> None:
    """Values of an older version of a benchmark are not part of the history."""
    write(tmp_path, 1, [1.0, 1.0, 1.0, 1.0], version="0")
    write(tmp_path, 2, None)
    write(tmp_path, 3, [5.0, 5.0, 5.0, 5.0])
    rows = frames(tmp_path).history
    assert set(rows["value"]) == {5.0}
    assert set(rows["ratio"]) == {1.0}


def test_damaged_asv_file_is_a_problem_and_others_are_read(tmp_path: Path) -> None:
    """A damaged file of asv is reported as a problem, and the other files are read."""
    (words,) = section(exhibit.EXHIBIT, frames(tmp_path)).blocks[-1:]
    assert "nox -s benchmarks-history" in str(words)
    write(tmp_path, 1, [1.0, 1.0, 1.0, 1.0])
    no_results = '{"date": 1, "commit_hash": "", "result_columns": [], "results": []}'
    for damage in ("{", "[]", '{"date": 1}', no_results):
        (tmp_path / "asv" / "kernels-avx2" / "b.json").write_text(damage)
        (problem,) = frames(tmp_path).results.benchmark_problems
        assert "b.json" in str(problem)
        assert len(frames(tmp_path).history) == 4
