"""Test a worker: cells that it cannot run, and the end of its time."""

import dataclasses
import itertools

import pytest
import torch

from petra_core import methods
from reproduce.cells.kinds import GradientsCell
from reproduce.grids import recipes
from reproduce.records.locks import LockLostError
from reproduce.records.record import Record, State, Status
from reproduce.running import worker
from reproduce.running.grid_options import GridOptions
from reproduce.running.messages import DeviceLost, Finished, Notice, Problem, Progress
from reproduce.running.worker import work
from tests.fake_records import complexity_cell
from tests.reproduce.measures.test_probed_cells import probed
from tests.reproduce.measures.test_training import CHAIN, records

CELLS = [dataclasses.replace(CHAIN, method=method) for method in ("PETRA", "BACKPROPAGATION", "DSP")]
PROBED = probed(GradientsCell, model="chain5", stem="stride2", width=4)


def reports(cells, root, should_stop=lambda: False, **options):
    """Return the reports of one worker in this process, without its progress."""
    messages = []
    settings = GridOptions(root=root, jobs=1, data_root=root / "data", **options)
    work(cells, settings, messages.append, should_stop, torch.device("cpu"))
    return [message for message in messages if not isinstance(message, Progress)]


def kinds(messages):
    """Return the type of each message and the index of its cell."""
    return [(type(message), message.index) for message in messages]


def test_missing_data_set_states_remedy_and_others_continue(tmp_path):
    """A missing data set is a problem that states the remedy, and the other cells are run."""
    missing = [recipes.cell("small", seed=seed) for seed in range(2)]
    messages = reports([missing[0], CELLS[0], missing[1], CELLS[1]], tmp_path)
    assert kinds(messages) == [(Problem, 0), (Finished, 1), (Problem, 2), (Finished, 3)]
    assert "python -m reproduce data prepare cifar10" in messages[0].text
    assert messages[0].text == messages[2].text, "so that it can be told once"
    assert Record.for_cell(missing[0], tmp_path).state().status is Status.NOT_RUN, "no record of a run that never began"


def test_missing_loader_lists_alternatives(tmp_path, monkeypatch):
    """A loader that is not installed is a problem that names an alternative."""
    monkeypatch.setattr("reproduce.cells.catalogue.ffcv_installed", lambda: False)
    monkeypatch.setattr("reproduce.data.sources._verify", lambda folder, loader: None)
    [message] = reports([recipes.cell("paper")], tmp_path)
    assert kinds([message]) == [(Problem, 0)]
    assert "the loader is ffcv, which is not installed. Choose --loader memory" in message.text


def test_worker_runs_measurement_cells(tmp_path):
    """A worker also runs cells that measure without training."""
    assert reports([complexity_cell(methods.PETRA)], tmp_path) == [Finished(0, State(Status.DONE))]


@pytest.mark.parametrize("cell", [CELLS[0], PROBED], ids=["training", "gradients"])
def test_cell_in_pieces_ends_with_the_same_record(tmp_path, cell):
    """A cell that is stopped repeatedly ends with the same record."""
    whole = tmp_path / "whole"
    assert kinds(reports([cell], whole)) == [(Finished, 0)]
    pieces, root = 0, tmp_path / "pieces"
    while not records(root):
        pieces += 1
        asked = itertools.count()
        reports([cell], root, should_stop=lambda asked=asked: next(asked) > 9)
        assert pieces < 20
    assert pieces > 2
    assert records(root) == records(whole)


def test_cell_taken_over_by_another_machine_gives_a_notice(tmp_path, monkeypatch):
    """Losing a cell to another machine gives a notice, and the cell is visited again."""
    executed = []

    def lose_once(record, context):
        executed.append(record.cell)
        if len(executed) == 1:
            raise LockLostError("beta has taken this cell over")
        return State(Status.DONE)

    monkeypatch.setattr(worker, "execute", lose_once)
    messages = reports(CELLS[:1], tmp_path)
    assert kinds(messages) == [(Notice, 0), (Finished, 0)]
    assert "beta" in messages[0].text


@pytest.mark.parametrize("message", ["CUDA error: device-side assert triggered", "something else"])
def test_worker_ends_after_device_error_only(tmp_path, monkeypatch, message):
    """An accelerator error ends the worker; after any other error it continues."""

    def fail(record, context):
        raise (torch.AcceleratorError if message.startswith("CUDA") else RuntimeError)(message)

    monkeypatch.setattr(worker, "execute", fail)
    messages = reports(CELLS, tmp_path)
    expected = [(DeviceLost, 0)] if message.startswith("CUDA") else [(Problem, index) for index in range(3)]
    assert kinds(messages) == expected
    assert message in messages[0].text


def test_record_states_how_many_workers_shared_a_gpu(tmp_path):
    reports(CELLS[:1], tmp_path, sharing=4)
    reports(CELLS[1:2], tmp_path)
    environments = [Record.for_cell(cell, tmp_path).read().environments for cell in CELLS[:2]]
    assert [entry.get("sharing") for (entry,) in environments] == [4, None]


def test_workers_use_their_device_with_their_share(tmp_path, monkeypatch):
    """Every worker takes its device with the number of workers that share it."""
    monkeypatch.setattr(worker.devices, "take", lambda *given: given)
    worked = []
    monkeypatch.setattr(worker, "work", lambda _, options, *given: worked.append((options.sharing, given[2])))
    for number in range(3):
        worker.main(CELLS, GridOptions(root=tmp_path, jobs=3, devices=("cuda:0", "cuda:1")), number, None, None, 0)
    assert worked == [(2, ("cuda:0", 2)), (1, ("cuda:1", 1)), (2, ("cuda:0", 2))]
