"""Test that runs are found by the planned cell, whatever the seed, loader and precision, and that no others are."""

import csv
import errno
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from pandas import DataFrame

from petra_core import methods
from reproduce.cells.kinds import GradientsCell
from reproduce.grids import recipes
from reproduce.presentation.compare import measured_samples
from reproduce.records.frames import Frames, average_over_micro_batches, over_training
from reproduce.records.results import read
from tests import fake_records
from tests.processes import call
from tests.sections import run_sets

CELL = recipes.cell("paper", epochs=6, drops=(), batch_size=8, dataset="imagenet")


def test_further_seeds_count_and_other_settings_do_not(tmp_path: Path) -> None:
    """Seeds beyond the plan belong to its runs, and cells with another setting do not."""
    for seed in (0, 7):
        fake_records.train(replace(CELL, seed=seed), tmp_path, 70.0 + seed)
    fake_records.train(replace(CELL, learning_rate=0.3), tmp_path, 20.0)
    (run_set,) = run_sets(tmp_path, "paper", [CELL])
    assert list(run_set.runs["seed"]) == [0, 7]
    assert list(run_set.runs["test_accuracy"]) == [70.0, 77.0]


def test_precisions_loaders_and_data_sets_have_separate_sheets(tmp_path: Path) -> None:
    """Precisions, torchvision's images and data sets have separate sheets; bitwise equal loaders do not."""
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


def test_shared_spread_counts_a_probed_training_once(tmp_path: Path) -> None:
    """A probed cell repeats the training of another cell, so the shared spread counts both once."""
    plain = [recipes.cell("small", seed=seed) for seed in range(2)]
    settings = {field.name: getattr(plain[0], field.name) for field in fields(plain[0])}
    probed = [GradientsCell(**{**settings, "seed": seed}, probe_every=8) for seed in range(3)]
    for cell in (*plain, *probed):
        fake_records.train(cell, tmp_path, 60.0 + cell.seed)
    (study,) = Frames(read(tmp_path)).studies.values()
    spread = study.spreads["test_accuracy"]
    assert (spread.settings, spread.freedom) == (1, 2)
    assert spread.deviation == pytest.approx(1.0)


def test_record_of_own_network_is_read_without_its_module(tmp_path: Path) -> None:
    """A record of a user's network is read although its module does not exist."""
    cell = replace(CELL, model="gone.away:stages", stem="own", width=1, scale="custom")
    fake_records.train(cell, tmp_path, 60.0)
    frames = Frames(read(tmp_path, [replace(cell, seed=1)]))
    assert set(frames.runs["network"]) == {"own network gone.away:stages"}
    assert list(frames.runs["status"]) == ["done", "not run"]


def test_frames_are_exported_as_csv(tmp_path: Path) -> None:
    """The export writes one CSV file per table, with the values of the records."""
    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    files = list(Frames(read(tmp_path)).export(tmp_path / "tables"))
    tables = ["runs", "epochs", "lines", "parts", "series"]
    assert [file.name for file in files] == [f"{table}.csv" for table in tables]
    (row,) = csv.DictReader(files[0].read_text().splitlines())
    assert (row["cell"], row["test_accuracy"]) == (recipes.cell("small").name, "60.0")
    assert len(files[1].read_text().splitlines()) == 1 + recipes.cell("small").epochs


def test_export_replaces_only_its_files(tmp_path: Path) -> None:
    """A repeated export replaces its files, and refuses to replace any other file."""
    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    export = "records", "export", tmp_path / "tables", "--records", tmp_path
    for _ in range(2):
        assert call(*export).exit_code == 0
    series, runs = (tmp_path / "tables" / f"{name}.csv" for name in ("series", "runs"))
    series.write_text("my,series\n")
    runs.write_text("cell,of an earlier export\n")
    result = call(*export, code=1)
    assert f"{series} is there already, and this command did not write it" in result.output
    assert series.read_text() == "my,series\n"
    assert runs.read_text() == "cell,of an earlier export\n", "nothing is written before all is checked"
    series.unlink()
    assert call(*export).exit_code == 0


def test_failed_export_leaves_no_partial_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk during an export leaves no CSV file."""

    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fake_records.train(recipes.cell("small"), tmp_path, 60.0)
    monkeypatch.setattr("os.fsync", full)
    result = call("records", "export", tmp_path / "tables", "--records", tmp_path, code=1)
    assert "no room to write" in result.output
    assert not list((tmp_path / "tables").glob("*.csv"))


def test_sheet_describes_gpu_runs_and_pairs_across_devices(tmp_path: Path) -> None:
    """The description counts the runs on each GPU, and mentions pairs on different devices."""
    cells = [recipes.cell("small", seed=seed) for seed in range(3)]
    gpu = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200"}
    fake_records.train(cells[0], tmp_path, 60.0)
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.describe().endswith(", float32")
    one = tmp_path / "one"
    fake_records.begin(cells[1], one, environment=gpu)
    fake_records.train(cells[1], one, 60.0)
    assert run_sets(one, "small", cells)[0].describe().endswith("; 1 run on NVIDIA H200 and in part on a CPU")
    for cell, earlier in ((cells[1], gpu), (cells[2], fake_records.ENVIRONMENT)):
        fake_records.begin(cell, tmp_path, environment=earlier)
        fake_records.train(cell, tmp_path, 60.0)
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.describe().endswith(
        ", float32; 3 runs: 1 on NVIDIA H200 and in part on a CPU, 2 on CPUs"
    )  # where it resumed
    for seed in (1, 2):
        cells.append(recipes.cell("small", method=methods.BACKPROPAGATION, seed=seed))
        record = fake_records.in_folder(fake_records.train(cells[-1], tmp_path, 60.0))
        (record.path / "environment.json").write_text(json.dumps({"schema": 1, "entries": [gpu]}))
    cells.append(recipes.cell("small", seed=3))  # not run
    (run_set,) = run_sets(tmp_path, "small", cells)
    assert run_set.describe().endswith(
        "; 5 runs: 1 on NVIDIA H200 and in part on a CPU, 2 on NVIDIA H200, 2 on CPUs; some compare different devices"
    )


def test_mean_is_weighted_and_skips_undefined_values() -> None:
    """Means are weighted by micro-batches, keep their order, and leave out undefined values: NaN without any other."""
    rows = [(1, 0, 1, 1.0), (1, 0, 3, 5.0), (1, 1, 2, None), (0, 0, 5, None), (0, 1, 5, 7.0)]
    lines = DataFrame(rows, columns=["seed", "stage", "weight", "value"])
    means = average_over_micro_batches(lines, ["seed", "stage"])
    assert list(means["seed"]) == [1, 1, 0, 0], "in the order in which they come"
    assert list(means["value"]) == pytest.approx([4.0, float("nan"), float("nan"), 7.0], nan_ok=True)
    samples = measured_samples(means, ["stage"])
    assert {place: sample.values for place, sample in samples.items()} == {0: {1: 4.0}, 1: {0: 7.0}}
    assert samples[2].estimate is None
    assert over_training(lines.assign(epoch=1, point=0.5, k=None))["value"].tolist() == [4.0, 7.0]
