"""Test the remaining time: a sum of recorded times of comparable cells, or unknown without any."""

import dataclasses

import pytest

from petra_core import methods
from reproduce.grids import recipes
from reproduce.records import speed
from reproduce.records.record import Record, State, Status, scan
from tests import fake_records
from tests.fake_records import ENVIRONMENT, complexity_cell

HERE = speed.device(ENVIRONMENT)
CELL = recipes.cell("smoke")
EPOCH = 1.6  # seconds of training and evaluation in the fake records


def recorded(root):
    return speed.collect_times(scan(root).records)


def left(speeds, cell=CELL, where=HERE):
    return speeds.left(cell, State(Status.NOT_RUN, epochs=cell.epochs_expected), where)


@pytest.mark.parametrize("epochs", [None, 1])
def test_recorded_cells_predict_time_of_comparable_cells(tmp_path, epochs):
    """Finished and partial cells predict the time of cells with other seeds, k, rates and lengths."""
    fake_records.train(CELL, tmp_path, 95.0, epochs=epochs)
    speeds = recorded(tmp_path)
    for change in ({"seed": 7}, {"accumulation": 32}, {"learning_rate": 0.5}, {"weight_decay": 0.0}):
        other = dataclasses.replace(CELL, **change)
        assert left(speeds, other) == pytest.approx(4 * EPOCH)
    longer = dataclasses.replace(CELL, epochs=40)
    assert left(speeds, longer) == pytest.approx(40 * EPOCH)


def test_remaining_time_uses_median_and_excludes_done_epochs():
    """The remaining time is the median epoch time multiplied by the remaining epochs."""
    speeds = speed.Speeds()
    speeds.add(CELL, HERE, [3.0, 2.0, 90.0])
    assert left(speeds) == 4 * 3.0
    assert speeds.left(CELL, State(Status.PARTIAL, 3, 4), HERE) == 3.0
    assert speeds.left(CELL, State(Status.DONE, 4, 4), HERE) == 0
    assert speeds.left(CELL, State(Status.FAILED, 1, 4, "diverged"), HERE) == 0


def test_other_work_and_moved_or_incomplete_cells_give_none(tmp_path):
    """Other settings, cells that changed the device and incomplete records predict no time."""
    fake_records.train(CELL, tmp_path / "a", 95.0)
    speeds = recorded(tmp_path / "a")
    for change in ({"width": 9}, {"batch_size": 96}, {"method": "DSP"}, {"image_size": 16}, {"precision": "bf16"}):
        assert left(speeds, dataclasses.replace(CELL, **change)) is None
    moved = fake_records.train(CELL, tmp_path / "b", 95.0, epochs=2)
    moved.begin(ENVIRONMENT | {"device": "NVIDIA H200"}, {})
    Record.for_cell(CELL, tmp_path / "c").begin({"python": "3.11"}, {})
    assert left(recorded(tmp_path / "b")) is left(recorded(tmp_path / "c")) is None


def test_other_devices_and_run_options_give_no_time(tmp_path, monkeypatch):
    """Times are predicted only for the same device, threads, processes and run options."""
    fake_records.train(CELL, tmp_path, 95.0)
    others = [{"device": "NVIDIA H200"}, {"processor": "another"}, {"threads": 2}, {"sharing": 4}, {"processes": 2}]
    for seed, other in enumerate([*others, {"cuda_graphs": 4}, {"compiled": True}], 1):
        where = speed.device(ENVIRONMENT | other)
        assert left(recorded(tmp_path), where=where) is None, other
        monkeypatch.setattr(fake_records, "ENVIRONMENT", ENVIRONMENT | other)
        fake_records.train(dataclasses.replace(CELL, seed=seed), tmp_path, 95.0)
        assert left(recorded(tmp_path), where=where) == pytest.approx(4 * EPOCH), other


def test_cells_without_epochs_take_their_total_time(tmp_path):
    """A cell without epochs is predicted by the total time of one with the same k and batch size."""
    cell = complexity_cell(methods.PETRA)
    record = Record.for_cell(cell, tmp_path)
    record.begin(ENVIRONMENT, {})
    assert left(recorded(tmp_path), cell) is None
    record.finish({"wall_seconds": 2.5})
    speeds = recorded(tmp_path)
    assert left(speeds, dataclasses.replace(cell, seed=1)) == 2.5
    assert left(speeds, cell, where=HERE._replace(cuda_graphs=4, compiled=True)) == 2.5, (
        "nothing of it is recorded or compiled"
    )
    assert left(speeds, complexity_cell(methods.PETRA, 4)) is None, "k micro-batches are measured"
    assert left(speeds, dataclasses.replace(cell, batch_size=64)) is None, "their time grows with the batch"
