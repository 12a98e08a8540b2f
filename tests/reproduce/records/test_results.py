"""Test reading records for the tables: readable ones are returned, and each other is a problem that hides none."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.grids import recipes
from reproduce.records import results
from reproduce.records.record import Status
from tests import fake_records


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
