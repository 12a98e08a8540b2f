"""Test the plan of `run --dry-run` on real folders: states, locks, damage and recorded speeds. It changes nothing."""

import pytest
import torch

from petra_core.methods import BACKPROPAGATION, PETRA
from reproduce.grids import recipes, scales
from reproduce.grids.grid import grid_of
from reproduce.records import provenance
from reproduce.records.record import Record
from tests import fake_records
from tests.messages import OUTPUTS, compare
from tests.processes import call

CHOSEN = ("--exhibits", "accuracy", "--models", "revnet18", "--methods", "petra,backpropagation")
ARGUMENTS = ("run", "smoke", "--dry-run", *CHOSEN, "--jobs", "1")
CELLS = [
    recipes.cell("smoke", method=method, accumulation=k) for k in (1, 4, 32) for method in (PETRA, BACKPROPAGATION)
]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Write six cells, of which one is done, one partial, one diverged, one damaged, with the speed of this machine."""
    here = provenance.environment(torch.device("cpu")) | {"threads": 1}
    monkeypatch.setattr(fake_records, "ENVIRONMENT", here)
    fake_records.train(CELLS[0], tmp_path, 95.0)
    fake_records.train(CELLS[1], tmp_path, 95.0, epochs=1)
    fake_records.train(CELLS[2], tmp_path, 95.0, epochs=1).fail("diverged", "nan")
    damaged = fake_records.train(CELLS[3], tmp_path, 95.0, epochs=1)
    (damaged.path / "config.json").write_text("{")
    return tmp_path


def plan(root, *more):
    return call(*ARGUMENTS, "--records", root, *more)


OPTIONS = ("", "--retry-failed", "--threads 2", "--precision bf16", "--timing 1f1b+0.3")


@pytest.mark.parametrize("options", OPTIONS)
def test_plan_counts_states_and_estimates_time(root, options):
    """`run --dry-run` counts cells by state, estimates the remaining time and changes no file.

    3 epochs of one cell and 4 of two others are left, at 1.5 s of training and 0.1 s of evaluation. The times of other
    threads and precisions are unknown. The other timing has no effect on backpropagation.
    """
    before = fake_records.snapshot(root)
    result = plan(root, *options.split())
    text = f"exit code {result.exit_code}\n{result.output}".replace(str(root), "RECORDS")
    compare(OUTPUTS, f"run --dry-run {options}".strip(), text)
    assert fake_records.snapshot(root) == before


def test_plan_reports_cells_that_cannot_run(root):
    """Unreadable and out-of-memory cells are reported as cells that cannot run, not as done."""
    for cell in CELLS[4:]:
        fake_records.train(cell, root, 95.0, epochs=1).fail("out of memory", "no")
    (Record.for_cell(CELLS[1], root).path / "config.json").write_text("{")
    compare(OUTPUTS, "run --dry-run of cells that cannot run", plan(root).output.replace(str(root), "RECORDS"))


def test_plan_shows_lock_of_another_machine(root, machine):
    """The plan names the process and the machine that hold the lock on a cell."""
    process, release = machine(stale=1000, folder=Record.for_cell(CELLS[1], root).path)
    text = plan(root, "-v").output
    assert f"LOCKED {CELLS[1].slug} by process {process.pid} on beta (last heartbeat " in text
    assert f"{CELLS[1].name}: 1 of 4 epochs, locked by process {process.pid} on beta" in text
    release.set()
    process.join()
    assert "LOCKED" not in plan(root).output


def test_plan_counts_every_cell_of_every_scale(tmp_path):
    """The plan of every scale counts all its cells in fewer than 120 lines."""
    for name in scales.SCALES:
        result = call("run", name, "--dry-run", "--records", tmp_path, "--data-root", tmp_path / "none", code=0)
        [total] = [line for line in result.output.splitlines() if line.startswith("in all")]
        assert int(total.split()[2]) == len(grid_of(name))
        assert ("NOT PREPARED: cifar10" in result.output) == (name != "smoke")
        assert len(result.output.splitlines()) < 120
