"""Records as the tables want them: every one that can be read, and every other as a problem that hides none."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reproduce.commands.cli import main
from reproduce.grids import recipes
from reproduce.records import results
from reproduce.records.record import Status
from tests import fake_records


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("result.json", lambda v: v | {"test_accuracy": None}, "test_accuracy is None, expected a number"),
        ("result.json", lambda v: {k: v[k] for k in v if k != "train_loss"}, "lacks train_loss: another version"),
        ("result.json", lambda v: v | {"data": "cifar10"}, "data is 'cifar10', expected a JSON object"),
        ("environment.json", lambda v: v | {"entries": [{}]}, "it lacks device, processor, cores"),
        ("environment.json", lambda v: v | {"entries": [5]}, "no list of entries, each a JSON object"),
        ("code.json", lambda v: v | {"entries": [5]}, "no list of entries, each a JSON object"),
        ("code.json", lambda v: v | {"entries": [{"diff": "gone.patch"}]}, "is named by code.json and cannot be read"),
    ],
)
def test_damage_that_would_take_a_table_down_is_named_and_check_finds_it(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    file = fake_records.train(recipes.cell("smoke"), tmp_path, 90.0).path / name
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 91.0)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    read = results.read(tmp_path)
    assert [run.cell.seed for run in read.runs] == [1]
    assert message in str(read.problems[0])
    checked = CliRunner().invoke(main, ["records", "check", "--records", str(tmp_path)])
    assert checked.exit_code == 1
    assert message in checked.stderr
    assert checked.stdout == "smoke: done: 1\n"


def test_a_failed_or_unfinished_cell_needs_no_values_but_a_finished_epoch_does(tmp_path: Path) -> None:
    fake_records.begin(recipes.cell("smoke"), tmp_path).fail("diverged", "nan")
    fake_records.train(recipes.cell("smoke", seed=1), tmp_path, 90.0, epochs=1)
    read = results.read(tmp_path)
    assert [run.state.status for run in read.runs] == [Status.FAILED, Status.PARTIAL]
    assert read.problems == ()
    file = fake_records.train(recipes.cell("smoke", seed=2), tmp_path, 90.0).path / "metrics.jsonl"
    file.write_text(file.read_text().replace('"test_accuracy"', '"test_acuracy"', 1))
    (problem,) = results.read(tmp_path).problems
    assert "metrics.jsonl: is damaged: line 1: test_accuracy is None, expected a number" in str(problem)


def test_what_is_planned_and_has_no_record_is_there_as_not_run_unless_it_ran_in_another_precision(
    tmp_path: Path,
) -> None:
    fake_records.train(replace(recipes.cell("smoke"), precision="bf16"), tmp_path, 90.0)
    planned = [recipes.cell("smoke"), recipes.cell("smoke", seed=1)]
    read = results.read(tmp_path, planned)
    assert [(run.cell.seed, run.state.status) for run in read.runs] == [(0, Status.DONE), (1, Status.NOT_RUN)]
    assert read.runs[0].cell.precision == "bf16"
    in_both = results.read(tmp_path, [recipes.cell("smoke"), replace(recipes.cell("smoke"), precision="bf16")])
    states = [(run.cell.precision, run.state.status) for run in in_both.runs]
    assert states == [("bf16", Status.DONE), ("float32", Status.NOT_RUN)]
