"""Test a worker: cells that it cannot run, and the end of its time."""

import pytest
import torch

from petra_core import methods
from reproduce.grids import recipes
from reproduce.records.locks import LockLostError
from reproduce.records.record import Record, State, Status
from reproduce.records.storage import StorageError, StorageFullError
from reproduce.running import worker
from reproduce.running.grid_options import GridOptions
from reproduce.running.messages import DeviceLost, DiskFull, Finished, Notice, Problem
from tests.example_cells import CHAINS
from tests.fake_records import complexity_cell
from tests.trainings import kinds, reports


def test_missing_loader_lists_alternatives(tmp_path, monkeypatch):
    """A loader that is not installed is a problem that names an alternative."""
    monkeypatch.setattr("reproduce.cells.catalogue.ffcv_installed", lambda: False)
    monkeypatch.setattr("reproduce.data.sources._verify", lambda folder, loader: None)
    [message] = reports([recipes.cell("paper")], tmp_path)
    assert kinds([message]) == [(Problem, 0)]
    assert "the loader is ffcv, which is not installed. Choose --loader memory" in message.text


def test_worker_runs_measurement_cells(tmp_path):
    """A worker also runs cells that measure without training."""
    cell = complexity_cell(methods.PETRA)
    assert reports([cell], tmp_path) == [Finished(0, State(Status.DONE))]
    assert Record.for_cell(cell, tmp_path).read().result["stages"] == 5


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (ZeroDivisionError("a slip"), [(Problem, 0), (Finished, 1)], "ZeroDivisionError: a slip"),
        (StorageError(13, "of another user"), [(Problem, 0), (Finished, 1)], "of another user"),
        (LockLostError("beta has it"), [(Notice, 0), (Finished, 1), (Finished, 0)], "beta has it"),
        (StorageFullError(28, "no room"), [(DiskFull, 0)], "no room"),
        (torch.AcceleratorError("CUDA error"), [(DeviceLost, 0)], "CUDA error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_worker_continues_after_errors_of_a_cell_only(tmp_path, monkeypatch, error, expected, text):
    """A full disk or an error of the device ends the worker. A cell taken over by another machine is visited again."""
    failures = [error]

    def fail_once(record, context):
        if failures:
            raise failures.pop()
        return State(Status.DONE)

    monkeypatch.setattr(worker, "execute", fail_once)
    messages = reports(CHAINS[:2], tmp_path)
    assert kinds(messages) == expected
    assert messages[0].text.endswith(text) or "Traceback" in messages[0].text
    assert ("Traceback" in messages[0].text) == isinstance(error, ZeroDivisionError | torch.AcceleratorError)
    assert text in messages[0].text


def test_stopped_worker_begins_no_cell(tmp_path):
    assert reports(CHAINS, tmp_path, should_stop=lambda: True) == []
    assert not list(tmp_path.iterdir())


def test_record_states_how_many_workers_shared_a_gpu(tmp_path):
    reports(CHAINS[:1], tmp_path, sharing=4)
    reports(CHAINS[1:2], tmp_path)
    environments = [Record.for_cell(cell, tmp_path).read().environments for cell in CHAINS[:2]]
    assert [entry.get("sharing") for (entry,) in environments] == [4, None]


def test_workers_use_their_device_with_their_share(tmp_path, monkeypatch):
    """Every worker takes its device with the number of workers that share it."""
    monkeypatch.setattr(worker.devices, "take", lambda *given: given)
    worked = []
    monkeypatch.setattr(worker, "work", lambda _, options, *given: worked.append((options.sharing, given[2])))
    for number in range(3):
        worker.main(CHAINS, GridOptions(root=tmp_path, jobs=3, devices=("cuda:0", "cuda:1")), number, None, None, 0, [])
    assert worked == [(2, ("cuda:0", 2)), (1, ("cuda:1", 1)), (2, ("cuda:0", 2))]
