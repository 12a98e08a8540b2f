"""Test reading records for the tables: readable ones are returned, and each other is a problem that hides none."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.grids import recipes
from reproduce.records import results
from reproduce.records.record import Status
from tests import fake_records
from tests.processes import call


def test_damage_is_found_by_check_and_hides_no_record(tmp_path: Path) -> None:
    """A damaged record is a problem of its cell only. tests/reproduce/errors.txt contains more kinds of damage."""
    file = fake_records.in_folder(fake_records.train(recipes.cell("smoke"), tmp_path, 90.0)).path / "result.json"
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 91.0)
    file.write_text("{")
    read = results.read(tmp_path)
    assert [run.cell.seed for run in read.runs] == [1]
    checked = call("records", "check", "--records", tmp_path)
    assert (checked.exit_code, checked.stdout) == (1, "smoke: done: 1\n")
    assert f"PROBLEM {read.problems[0]}" in checked.stderr


def test_failed_and_unfinished_cells_need_no_result(tmp_path: Path) -> None:
    fake_records.begin(recipes.cell("smoke"), tmp_path).fail("diverged", "nan")
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 90.0, epochs=1)
    read = results.read(tmp_path)
    assert [run.state.status for run in read.runs] == [Status.FAILED, Status.PARTIAL]
    assert read.problems == ()


@pytest.mark.parametrize("copy", ["live/zzz", "smoke/aaa"])
def test_folder_in_another_place_is_a_problem(tmp_path: Path, copy: str) -> None:
    """Only the folder in the place of its cell counts, and a copy elsewhere is reported."""
    record = fake_records.train(recipes.cell("smoke"), tmp_path, 90.0, epochs=2)
    shutil.copytree(record.path, tmp_path / copy)
    for states in ([Status.PARTIAL], []):
        read = results.read(tmp_path)
        assert [run.state.status for run in read.runs] == states
        (problem,) = read.problems
        words = f"{copy}/config.json: is not in the place of its cell. Move the folder to {record.path}, or away"
        assert words in str(problem)
        shutil.rmtree(record.path, ignore_errors=True)


def test_two_different_results_conflict_and_neither_counts(tmp_path: Path) -> None:
    """Different results of a cell in its volume and in its folder are a problem, and neither is read."""
    cell = recipes.cell("smoke")
    record = fake_records.train(cell, tmp_path, 90.0)
    fake_records.unpack(record.read(), record.path)
    assert [run.result["test_accuracy"] for run in results.read(tmp_path, [cell]).runs] == [90.0], "the same result"
    file = record.path / "result.json"
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
