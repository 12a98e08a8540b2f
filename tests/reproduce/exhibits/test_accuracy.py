"""Make the situations of the accuracy of the methods and of the cost of the runs."""

from dataclasses import replace
from pathlib import Path

from petra_core import methods
from reproduce.exhibits import accuracy, cost
from reproduce.grids import recipes
from tests import fake_records
from tests.sections import situation

CELLS = {
    (m, k): recipes.cell("smoke", "revnet18", m, k) for m in (methods.PETRA, methods.BACKPROPAGATION) for k in (1, 32)
}


@situation(accuracy.EXHIBIT)
def all_runs_below_the_target(root: Path) -> None:
    """Runs below the accuracy of their scale are the only finding, an alert. k = 32 has no such accuracy."""
    for cell in CELLS.values():
        fake_records.train(cell, root, 80.0)


@situation(accuracy.EXHIBIT, "none")
def all_runs_above_the_target(root: Path) -> None:
    """The finding states that all finished runs exceed the accuracy of their scale."""
    fake_records.train(CELLS[methods.BACKPROPAGATION, 1], root, 95.0)


@situation(accuracy.EXHIBIT, "none")
def one_failed_run(root: Path) -> None:
    """A failed run counts as one below the accuracy of its scale."""
    fake_records.train(CELLS[methods.BACKPROPAGATION, 1], root, 95.0)
    fake_records.train(CELLS[methods.PETRA, 1], root, 50.0, epochs=1).fail("diverged", "nan")


@situation(accuracy.EXHIBIT)
def several_scales_and_recipes(root: Path) -> None:
    """Runs of different scales, recipes or timings are in different tables, whose captions name scale and timing."""
    smoke = CELLS[methods.PETRA, 1]
    custom = replace(smoke, scale="custom")
    fake_records.train(smoke, root, 91.0)
    fake_records.train(custom, root, 92.0)
    fake_records.train(replace(custom, epochs=smoke.epochs + 1), root, 93.0)
    fake_records.train(replace(custom, learning_rate=2 * smoke.learning_rate), root, 94.0)
    fake_records.train(replace(custom, timing="1f1b"), root, 95.0)
    fake_records.train(replace(custom, method="BACKPROPAGATION"), root, 96.0)


@situation(cost.EXHIBIT)
def hours_of_finished_failed_and_abandoned_runs(root: Path) -> None:
    """CPU time is multiplied by the threads, and GPU time is divided by the processes that share the GPU."""
    for seed, environment in enumerate(({"threads": 2}, {"device": "A GPU", "threads": 4, "sharing": 10})):
        cell = recipes.cell("small", "revnet18", methods.PETRA, 1, seed)
        record = fake_records.begin(cell, root, environment=fake_records.ENVIRONMENT | environment)
        for epoch in (1, 2, 3):
            line = {"epoch": epoch, "train_loss": 1.0, "test_accuracy": 50.0}
            record.append(line | {"train_seconds": 36_000.0, "evaluation_seconds": 3600.0})
        fake_records.finish(record, 50.0)
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 4), root, 50.0, epochs=1)
    lost = fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 16), root, 50.0, epochs=1)
    lost.fail("diverged", "nan")
