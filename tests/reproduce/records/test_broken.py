"""A run is broken if it has not learned, whatever its loss."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids.smoke import digits_cell
from reproduce.records.broken import broken, chance
from reproduce.records.results import Run, read
from tests import fake_probes, fake_records


def finished(root: Path, accuracy: float, loss: float | None, cell: TrainingCell | None = None) -> Run[Cell]:
    cell = digits_cell() if cell is None else cell
    fake_probes.train(cell, root, accuracy, loss)
    return next(run for run in read(root).runs if run.cell == cell)


@pytest.mark.parametrize(
    ("accuracy", "loss", "expected"),
    [
        (80.0, 0.5, ""),
        (25.9, 2.41, ""),  # the loss is the mean of an epoch, and the first steps' spike is in it
        (20.1, 1e9, ""),
        (20.0, 0.5, "at chance"),
        (16.0, 2.06, "at chance"),
        (10.0, None, "at chance"),
    ],
)
def test_a_finished_run_is_broken_if_its_accuracy_is_at_most_twice_that_of_a_guess(
    accuracy: float, loss: float | None, expected: str, tmp_path: Path
) -> None:
    assert broken(finished(tmp_path, accuracy, loss)) == expected


def test_a_guess_depends_on_the_number_of_classes(tmp_path: Path) -> None:
    cell = digits_cell(dataset="cifar100", image_size=32, scale="custom")
    assert chance(cell) == 1.0
    assert broken(finished(tmp_path, 9.0, 4.0, cell)) == ""


def test_a_loss_that_is_not_finite_breaks_and_a_lack_of_memory_does_not(tmp_path: Path) -> None:
    for seed, reason in enumerate(("diverged", "out of memory")):
        fake_records.train(digits_cell(seed=seed), tmp_path, 50.0, epochs=1).fail(reason, "…")
    fake_records.train(digits_cell(seed=2), tmp_path, 10.0, epochs=1)
    by_seed = {run.cell.seed: run for run in read(tmp_path).runs}
    assert [broken(by_seed[seed]) for seed in (0, 1, 2)] == ["loss not finite", "", ""]
