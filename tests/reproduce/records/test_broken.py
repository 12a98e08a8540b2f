"""Test that a run counts as broken if it has not learned, whatever its loss."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import TrainingCell
from reproduce.grids import recipes
from reproduce.records.broken import broken
from reproduce.records.results import read
from tests import fake_probes, fake_records

CIFAR100 = recipes.cell("smoke", dataset="cifar100", image_size=32, scale="custom")


@pytest.mark.parametrize(
    ("cell", "accuracy", "loss", "expected"),
    [
        (recipes.cell("smoke"), 80.0, 0.5, ""),
        # The loss is the mean of an epoch, including the spike of the first steps.
        (recipes.cell("smoke"), 25.9, 2.41, ""),
        (recipes.cell("smoke"), 20.1, 1e9, ""),
        (recipes.cell("smoke"), 20.0, 0.5, "below twice chance"),
        (recipes.cell("smoke"), 16.0, 2.06, "below twice chance"),
        (recipes.cell("smoke"), 10.0, None, "below twice chance"),
        (CIFAR100, 9.0, 4.0, ""),  # a guess is right for one class in a hundred
        (CIFAR100, 2.0, 4.0, "below twice chance"),
    ],
)
def test_run_is_broken_at_most_at_twice_chance(
    cell: TrainingCell, accuracy: float, loss: float | None, expected: str, tmp_path: Path
) -> None:
    """A finished run is broken if its accuracy is at most twice that of a guess, whatever its loss."""
    fake_probes.train(cell, tmp_path, accuracy, loss)
    assert broken(next(run for run in read(tmp_path).runs if run.cell == cell)) == expected


def test_non_finite_loss_is_broken_and_out_of_memory_is_not(tmp_path: Path) -> None:
    """A diverged run is broken; an out-of-memory run and an unfinished run are not."""
    for seed, reason in enumerate(("diverged", "out of memory")):
        fake_records.train(recipes.cell("smoke", seed=seed), tmp_path, 50.0, epochs=1).fail(reason, "…")
    fake_records.train(recipes.cell("smoke", seed=2), tmp_path, 10.0, epochs=1)
    by_seed = {run.cell.seed: run for run in read(tmp_path).runs}
    assert [broken(by_seed[seed]) for seed in (0, 1, 2)] == ["loss not finite", "", ""]
