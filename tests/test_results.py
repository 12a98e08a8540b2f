"""Records as the tables want them: every one that can be read, and every other as a problem that hides none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.records import Status
from reproduce.scales.smoke import digits_cell
from reproduce.tables import results
from tests import fake_records


@pytest.mark.parametrize("name", ["test_accuracy", "best_test_accuracy", "train_loss", "peak_bytes"])
def test_a_result_without_what_tables_show_is_foreign_and_the_others_are_there(tmp_path: Path, name: str) -> None:
    record = fake_records.train(digits_cell(), tmp_path, 90.0)
    fake_records.train(digits_cell(seed=1), tmp_path, 91.0)
    file = record.path / "result.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != name}))
    found = results.read(tmp_path, [digits_cell(seed=seed) for seed in (0, 1)])
    assert [run.cell.seed for run in found.training] == [1]
    (problem,) = found.problems
    assert problem.path == file
    assert problem.foreign
    assert f"lacks {name}" in str(problem)


def test_a_measurement_without_what_table_1_shows_is_foreign(tmp_path: Path) -> None:
    fake_records.begin(fake_records.complexity_cell(methods.PETRA), tmp_path).finish({"rows": [], "stages": 5})
    (problem,) = results.read(tmp_path).problems
    assert "lacks memory, stage_flops" in str(problem)


def test_a_failed_or_unfinished_cell_needs_no_values(tmp_path: Path) -> None:
    fake_records.begin(digits_cell(), tmp_path).fail("diverged", "nan")
    fake_records.train(digits_cell(seed=1), tmp_path, 90.0, epochs=1)
    found = results.read(tmp_path)
    assert [run.state.status for run in found.training] == [Status.FAILED, Status.PARTIAL]
    assert found.problems == ()


def test_what_is_planned_and_has_no_record_is_there_as_not_run_unless_it_ran_in_another_precision(
    tmp_path: Path,
) -> None:
    fake_records.train(replace(digits_cell(), precision="bf16"), tmp_path, 90.0)
    planned = [digits_cell(), digits_cell(seed=1)]
    found = results.read(tmp_path, planned)
    assert [(run.cell.seed, run.state.status) for run in found.training] == [(0, Status.DONE), (1, Status.NOT_RUN)]
    assert [run.cell.precision for run in found.of(planned[:1])] == ["bf16"]
