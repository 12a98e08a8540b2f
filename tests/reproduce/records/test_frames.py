"""Test that runs are found by the planned cell, whatever the seed, loader and precision, and that no others are."""

import csv
import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pandas import DataFrame

from petra_core import methods
from reproduce.commands.cli import main
from reproduce.grids import recipes
from reproduce.grids.plans.transformers import IMAGES
from reproduce.presentation.compare import means
from reproduce.records.frames import LINES, PARTS, RUNS, SERIES, Frames, over_training
from reproduce.records.results import read
from tests import fake_records
from tests.sections import run_sets

CELL = recipes.cell("paper", epochs=6, drops=(), batch_size=8, dataset="imagenet")


def test_seeds_beyond_the_plan_count_and_another_setting_does_not(tmp_path: Path) -> None:
    for seed in (0, 7):
        fake_records.train(replace(CELL, seed=seed), tmp_path, 70.0 + seed)
    fake_records.train(replace(CELL, learning_rate=0.3), tmp_path, 20.0)
    (run_set,) = run_sets(tmp_path, "paper", [CELL])
    assert list(run_set.runs["seed"]) == [0, 7]
    assert list(run_set.runs["test_accuracy"]) == [70.0, 77.0]


def test_what_was_not_run_is_a_row_that_says_so(tmp_path: Path) -> None:
    cells = [replace(CELL, seed=seed) for seed in range(3)]
    fake_records.train(cells[1], tmp_path, 70.0)
    (run_set,) = run_sets(tmp_path, "paper", cells)
    assert list(run_set.runs["state"]) == ["not run", "done", "not run"]
    assert len(run_set.done) == 1
    (empty,) = run_sets(tmp_path / "nothing", "paper", cells)
    assert not empty.begun
    assert list(empty.runs["state"]) == ["not run"] * 3


def test_precisions_images_of_torchvision_and_data_sets_are_sheets_apart(tmp_path: Path) -> None:
    for precision in ("float32", "bf16", "tf32"):
        fake_records.train(replace(CELL, precision=precision, loader="ffcv"), tmp_path, 70.0)
    fake_records.train(replace(CELL, loader="torchvision"), tmp_path, 50.0)
    keys = [run_set.key for run_set in run_sets(tmp_path, "paper", [CELL])]
    assert keys == ["paper-tf32", "paper-float32-torchvision", "paper", "paper-bf16"]
    assert [len(run_set.runs) for run_set in run_sets(tmp_path, "paper", [CELL])] == [1] * 4
    cells = [recipes.cell("paper"), recipes.cell("paper", dataset="cifar100")]
    fake_records.train(cells[0], tmp_path / "data", 70.0)
    begun = [(run_set.dataset, run_set.begun) for run_set in run_sets(tmp_path / "data", "paper", cells)]
    assert begun == [("cifar10", True), ("cifar100", False)]
    # Of two bitwise equal loaders, the finished run counts.
    cell = recipes.cell("small")
    fake_records.train(cell, tmp_path / "loaders", 70.0)
    fake_records.train(replace(cell, loader="ffcv"), tmp_path / "loaders", 20.0, epochs=1)
    (run_set,) = run_sets(tmp_path / "loaders", "small", [cell])
    assert list(run_set.runs["status"]) == ["done"]


def test_a_sample_says_how_many_seeds_and_what_became_of_the_others(tmp_path: Path) -> None:
    cells = [recipes.cell("small", seed=seed) for seed in range(4)]
    fake_records.train(cells[0], tmp_path, 60.0)
    fake_records.train(cells[1], tmp_path, 61.0)
    fake_records.train(cells[2], tmp_path, 61.0, epochs=1).fail("diverged", "nan")
    (run_set,) = run_sets(tmp_path, "small", cells)
    samples = means(run_set.runs, "test_accuracy", ["method", "k"])
    sample = samples["PETRA", cells[0].accumulation]
    assert sample.values == {0: 60.0, 1: 61.0}
    assert sample.seeds == "2 of 4; 1 diverged"
    assert sample.unfinished == "seed 2: diverged (epoch 2 of 3); seed 3: not run"
    assert means(run_set.runs, "test_accuracy", ["method"])["PETRA"] == sample
    assert samples["DSP", 1].summary == "not run"


def test_the_schema_is_the_columns_and_holds_for_every_kind_of_cell(tmp_path: Path) -> None:
    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    fake_records.train(replace(IMAGES.cell(methods.PETRA, 1), precision="bf16"), tmp_path, 60.0)
    frames = Frames(read(tmp_path, [fake_records.complexity_cell(methods.PETRA)]))
    assert tuple(frames.runs.columns) == RUNS
    assert tuple(frames.lines(frames.runs["cell"]).columns) == LINES
    assert tuple(frames.parts(frames.runs["cell"]).columns) == PARTS
    assert tuple(frames.series.columns) == SERIES
    assert set(frames.runs["kind"]) == {"training", "complexity"}
    assert set(frames.runs["arithmetic"]) == {"float32", "bf16"}


def test_a_record_of_a_users_network_is_read_without_its_module(tmp_path: Path) -> None:
    cell = replace(CELL, model="gone.away:stages", stem="own", width=1, scale="custom")
    fake_records.train(cell, tmp_path, 60.0)
    frames = Frames(read(tmp_path, [replace(cell, seed=1)]))
    assert set(frames.runs["network"]) == {"own network gone.away:stages"}
    assert list(frames.runs["status"]) == ["done", "not run"]


def test_tables_can_be_had_as_files(tmp_path: Path) -> None:
    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    files = list(Frames(read(tmp_path)).export(tmp_path / "tables"))
    tables = ["runs", "epochs", "lines", "parts", "series", "history"]
    assert [file.name for file in files] == [f"{table}.csv" for table in tables]
    (row,) = csv.DictReader(files[0].read_text().splitlines())
    assert (row["cell"], row["test_accuracy"]) == (recipes.cell("small").name, "60.0")
    assert len(files[1].read_text().splitlines()) == 1 + recipes.cell("small").epochs


def test_an_export_replaces_its_own_tables_and_nobody_elses(tmp_path: Path) -> None:
    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    export = ["records", "export", str(tmp_path / "tables"), "--records", str(tmp_path)]
    for _ in range(2):
        assert CliRunner().invoke(main, export).exit_code == 0
    series, runs = (tmp_path / "tables" / f"{name}.csv" for name in ("series", "runs"))
    series.write_text("my,series\n")
    runs.write_text("cell,of an earlier export\n")
    result = CliRunner().invoke(main, export)
    assert result.exit_code == 1
    assert f"{series} is there already, and this command did not write it" in result.output
    assert series.read_text() == "my,series\n"
    assert runs.read_text() == "cell,of an earlier export\n", "nothing is written before all is checked"
    series.unlink()
    assert CliRunner().invoke(main, export).exit_code == 0


def test_a_table_for_which_there_is_no_room_is_not_half_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    monkeypatch.setattr("os.fsync", full)
    result = CliRunner().invoke(main, ["records", "export", str(tmp_path / "tables"), "--records", str(tmp_path)])
    assert result.exit_code == 1
    assert "no room to write" in result.output
    assert not list((tmp_path / "tables").glob("*.csv"))


def test_a_recipe_in_words(tmp_path: Path) -> None:
    for cell, words in (
        (
            recipes.cell("small", accumulation=8),
            "CIFAR-10, width 8, micro-batches of 32, 3 epochs, learning rate 0.1·batch·k",
        ),
        (recipes.cell("small", reference_rate=0.4), "learning rate 0.4·batch·k/256"),
        (
            recipes.cell("paper", "revnet50", dataset="cifar100"),
            "scale “paper”: CIFAR-100, width 64, micro-batches of 64, 300 epochs",
        ),
    ):
        (run_set,) = run_sets(tmp_path, cell.scale, [cell])
        assert words in run_set.described()
        assert "RevNet-" in run_set.described(network=True)


def test_a_recipe_says_which_runs_were_on_a_gpu_and_whether_pairs_were_on_one_device(tmp_path: Path) -> None:
    cells = [recipes.cell("small", seed=seed) for seed in range(3)]
    gpu = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200"}
    fake_records.train(cells[0], tmp_path, 60.0)
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.described().endswith(", float32")
    for cell, earlier in ((cells[1], gpu), (cells[2], fake_records.ENVIRONMENT)):
        fake_records.begin(cell, tmp_path, environment=earlier)
        fake_records.train(cell, tmp_path, 60.0)
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.described().endswith(", float32, of 3 runs 1 on NVIDIA H200 and a CPU")  # where it resumed
    for seed in (1, 2):
        cells.append(recipes.cell("small", method=methods.BACKPROPAGATION, seed=seed))
        record = fake_records.in_folder(fake_records.train(cells[-1], tmp_path, 60.0))
        (record.path / "environment.json").write_text(json.dumps({"schema": 1, "entries": [gpu]}))
    cells.append(recipes.cell("small", seed=3))  # not run
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.described().endswith(
        "of 5 runs 1 on NVIDIA H200 and a CPU, 2 on NVIDIA H200, some pairs across devices"
    )


def test_measures_are_averaged_over_micro_batches_and_what_is_not_defined_does_not_count() -> None:
    # One epoch has two micro-batches, the other six; stage 0 keeps its input in the second.
    rows = [("a", 0, 1, 0.5, 2, 0, "error", 1.0), ("a", 0, 2, 1.5, 6, 0, "error", None)]
    rows += [("a", 0, 1, 0.5, 2, 1, "error", 1.0), ("a", 0, 2, 1.5, 6, 1, "error", 5.0)]
    lines = DataFrame.from_records(rows, columns=list(LINES)).assign(k=None)
    means = over_training(lines)
    assert means.columns.tolist() == ["cell", "seed", "stage", "measure", "k", "value"]
    assert means[["stage", "value"]].to_numpy().tolist() == [[0, 1.0], [1, 4.0]]
    assert over_training(lines.iloc[:0]).empty
