"""A run is broken if it has not learned, however finite its loss."""

import math
from pathlib import Path

import pytest

from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids.smoke import digits_cell
from reproduce.records.broken import broken, chance
from reproduce.records.results import Run, read
from tests import fake_probes, fake_records

GUESS = math.log(10)


def finished(root: Path, accuracy: float, loss: float | None, cell: TrainingCell | None = None) -> Run[Cell]:
    cell = digits_cell() if cell is None else cell
    fake_probes.train(cell, root, accuracy, loss)
    return next(run for run in read(root).runs if run.cell == cell)


@pytest.mark.parametrize(
    ("accuracy", "loss", "expected"),
    [
        (80.0, GUESS, "loss of a guess"),
        (80.0, GUESS - 1e-6, ""),
        (15.0, 0.5, "accuracy of a guess"),
        (15.1, 0.5, ""),
        (80.0, None, ""),
    ],
)
def test_a_finished_run_is_broken_if_it_does_no_better_than_a_guess(
    accuracy: float, loss: float | None, expected: str, tmp_path: Path
) -> None:
    run = finished(tmp_path, accuracy, loss)
    assert broken(run) == expected


def test_a_guess_depends_on_the_number_of_classes(tmp_path: Path) -> None:
    cell = digits_cell(dataset="cifar100", image_size=32, scale="custom")
    assert chance(cell) == 1.0
    assert broken(finished(tmp_path, 9.0, 4.0, cell)) == ""


def test_a_loss_that_is_not_finite_breaks_and_a_lack_of_memory_does_not(tmp_path: Path) -> None:
    for seed, reason in enumerate(("diverged", "out of memory")):
        fake_records.train(digits_cell(seed=seed), tmp_path, 50.0, epochs=1).fail(reason, "…")
    fake_records.train(digits_cell(seed=2), tmp_path, 10.0, epochs=1)
    by_seed = {run.cell.seed: run for run in read(tmp_path).training}
    assert [broken(by_seed[seed]) for seed in (0, 1, 2)] == ["loss not finite", "", ""]
