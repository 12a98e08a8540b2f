"""Test reading records for the tables: readable ones are returned, and each other is a problem that hides none."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reproduce.commands.cli import main
from reproduce.grids import recipes
from reproduce.records import results
from reproduce.records.record import Record, Status, scan
from tests import fake_records


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "result.json",
            lambda v: v | {"test_accuracy": None},
            "test_accuracy is None, expected a number from 0 to 100",
        ),
        ("result.json", lambda v: {k: v[k] for k in v if k != "train_loss"}, "lacks train_loss: another version"),
        ("result.json", lambda v: v | {"data": "cifar10"}, "data is 'cifar10', expected a JSON object with dataset"),
        ("result.json", lambda v: v | {"test_accuracy": float("nan")}, "expected finite numbers, got nan"),
        ("result.json", lambda v: v | {"train_loss": "x"}, "train_loss is 'x', expected null or a number"),
        ("environment.json", lambda v: v | {"entries": []}, "is missing or empty, so the origin"),
        ("code.json", lambda v: v | {"entries": []}, "is missing or empty, so the origin"),
        ("environment.json", lambda v: v | {"entries": [{}]}, "it lacks device, processor, cores"),
        ("environment.json", lambda v: v | {"entries": [5]}, "has no list of JSON objects"),
        ("code.json", lambda v: v | {"entries": [5]}, "has no list of JSON objects"),
        (
            "code.json",
            lambda v: v | {"entries": [{"diff": "gone.patch"}]},
            "diff is 'gone.patch', expected a name such as diff-1.patch",
        ),
    ],
)
def test_damage_is_named_and_found_by_check(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    """An invalid value is a named problem of its record only, and `records check` reports it."""
    file = fake_records.in_folder(fake_records.train(recipes.cell("smoke"), tmp_path, 90.0)).path / name
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 91.0)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    read = results.read(tmp_path)
    assert [run.cell.seed for run in read.runs] == [1]
    assert message in str(read.problems[0])
    checked = CliRunner().invoke(main, ["records", "check", "--records", str(tmp_path)])
    assert checked.exit_code == 1
    assert message in checked.stderr
    assert checked.stdout == "smoke: done: 1\n"


def test_only_finished_epochs_need_values(tmp_path: Path) -> None:
    """Failed and unfinished cells need no result, but every finished epoch needs its values."""
    fake_records.begin(recipes.cell("smoke"), tmp_path).fail("diverged", "nan")
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 90.0, epochs=1)
    read = results.read(tmp_path)
    assert [run.state.status for run in read.runs] == [Status.FAILED, Status.PARTIAL]
    assert read.problems == ()
    record = fake_records.in_folder(fake_records.train(recipes.cell("smoke", seed=2), tmp_path, 90.0))
    file = record.path / "metrics.jsonl"
    file.write_text(file.read_text().replace('"test_accuracy"', '"test_acuracy"', 1))
    (problem,) = results.read(tmp_path).problems
    assert "metrics.jsonl: is damaged: line 1: it lacks test_accuracy" in str(problem)


def test_metrics_are_one_line_per_epoch_and_rows_are_lists(tmp_path: Path) -> None:
    """Metrics have one line per epoch in order, and rows of measurements are lists."""
    file = fake_records.in_folder(fake_records.train(recipes.cell("smoke"), tmp_path, 90.0)).path / "metrics.jsonl"
    first, second, *others = file.read_text().splitlines()
    file.write_text("\n".join([first, first, *others]) + "\n")
    (problem,) = results.read(tmp_path).problems
    assert "metrics.jsonl: is damaged: line 2 belongs to epoch 1" in str(problem)
    file.write_text("\n".join([first, second, *others]) + "\n")
    assert not results.read(tmp_path).problems
    fake_records.measure(tmp_path)
    measured = next(run.cell for run in scan(tmp_path).records if run.cell.kind == "complexity")
    file = fake_records.in_folder(Record.for_cell(measured, tmp_path)).path / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rows": 5}))
    (problem,) = results.read(tmp_path).problems
    assert "rows is 5, expected a list" in str(problem)


@pytest.mark.parametrize("copy", ["zzz", "aaa"])
def test_misplaced_copy_of_unfinished_record_is_a_problem(tmp_path: Path, copy: str) -> None:
    """Of two unfinished folders of a cell, the one in its place is read, and the other is a problem."""
    record = fake_records.train(recipes.cell("smoke"), tmp_path, 90.0, epochs=2)
    shutil.copytree(record.path, record.path.with_name(copy))
    (record.path.with_name(copy) / "metrics.jsonl").unlink()
    read = results.read(tmp_path)
    assert [run.state.epochs_done for run in read.runs] == [2]
    (problem,) = read.problems
    assert f"{copy}/config.json: is a second record of the cell in {record.path}; move" in str(problem)
    record.path.rename(record.path.with_name("mmm"))  # neither is in its place: one of them counts
    read = results.read(tmp_path)
    assert (len(read.runs), len(read.problems)) == (1, 1)


@pytest.mark.parametrize("copy", ["live/zzz", "smoke/aaa"])
def test_two_different_results_conflict_and_neither_counts(tmp_path: Path, copy: str) -> None:
    """Two different results of a cell are a problem, and neither is read."""
    cell = recipes.cell("smoke")
    record = fake_records.train(cell, tmp_path, 90.0)
    fake_records.unpack(record.read(), tmp_path / copy)
    assert [run.result["test_accuracy"] for run in results.read(tmp_path, [cell]).runs] == [90.0], "the same result"
    file = tmp_path / copy / "result.json"
    file.write_text(file.read_text().replace("90.0", "11.0"))
    read = results.read(tmp_path, [cell])
    assert read.runs == (), "and it is not listed as not run"
    assert f"{cell.name} has two different results: 90.00 % and 11.00 % in {file.parent}" in str(read.problems[0])


def test_planned_cell_is_not_run_unless_in_another_precision(tmp_path: Path) -> None:
    """A planned cell without a record is not run, unless it has a record in another precision."""
    fake_records.train(replace(recipes.cell("smoke"), precision="bf16"), tmp_path, 90.0)
    planned = [recipes.cell("smoke"), recipes.cell("smoke", seed=1)]
    read = results.read(tmp_path, planned)
    assert [(run.cell.seed, run.state.status) for run in read.runs] == [(0, Status.DONE), (1, Status.NOT_RUN)]
    assert read.runs[0].cell.precision == "bf16"
    in_both = results.read(tmp_path, [recipes.cell("smoke"), replace(recipes.cell("smoke"), precision="bf16")])
    states = [(run.cell.precision, run.state.status) for run in in_both.runs]
    assert states == [("bf16", Status.DONE), ("float32", Status.NOT_RUN)]
