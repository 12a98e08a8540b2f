"""Test the cost of the runs: seconds times threads on CPUs, shares of a GPU, and unfinished runs."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import cost
from reproduce.grids import recipes
from reproduce.records.results import read
from tests import fake_records, sections

SECONDS = 1.6  # per epoch of a fake record: training and evaluation


def train(root: Path, seed: int, **environment: object) -> None:
    record = fake_records.begin(
        recipes.cell("small", "revnet18", methods.PETRA, 1, seed),
        root,
        environment=fake_records.ENVIRONMENT | environment,
    )
    for epoch in (1, 2, 3):
        line = {"epoch": epoch, "train_loss": 1.0, "test_accuracy": 50.0}
        record.append(line | {"train_seconds": 1.5, "evaluation_seconds": 0.1})
    fake_records.finish(record, 50.0)


def test_cost_counts_cores_and_shares_of_a_gpu(tmp_path: Path) -> None:
    """CPU time is multiplied by the threads, and GPU time is divided by the processes that share the GPU."""
    train(tmp_path, 0, threads=2)
    train(tmp_path, 1, device="A GPU", threads=4, sharing=10)
    total = cost.cost_of(read(tmp_path).runs)
    assert total.core_hours == pytest.approx(2 * 3 * SECONDS / 3600)
    assert total.gpu_hours == pytest.approx(3 * SECONDS / 10 / 3600)


def test_cost_includes_failed_and_abandoned_runs(tmp_path: Path) -> None:
    """Failed and abandoned runs are counted."""
    train(tmp_path, 0)
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 4), tmp_path, 50.0, epochs=1)
    lost = recipes.cell("small", "revnet18", methods.PETRA, 16)
    fake_records.train(lost, tmp_path, 50.0, epochs=1).fail("diverged", "nan")
    section = sections.made(cost.EXHIBIT, tmp_path)
    assert section.sentence.endswith("1 finished, 1 failed (1 diverged) and 1 were abandoned.")
    last = sections.table(section, "cost").rows[-1]
    assert [entry.text for entry in last[3:]] == ["1", "1", "1"]
    petra = sections.entries(sections.table(section, "cost-settings"), "PETRA")
    assert (petra["", "settings"].text, petra["", "runs"].text) == ("3", "3")
