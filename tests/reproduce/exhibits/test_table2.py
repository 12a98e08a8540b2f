"""Make the situations of Table 2: which runs are listed next to a published value, and both batches."""

from collections.abc import Iterable
from pathlib import Path

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import table2
from reproduce.grids import recipes
from tests import fake_records
from tests.sections import situation


def train(root: Path, cells: Iterable[TrainingCell], reached: float, best: float | None = None) -> None:
    """Write a run of each cell, a tenth of a point higher for each seed; `best` is that of the best epoch."""
    for cell in cells:
        extra = {} if best is None else {"best_test_accuracy": best + 0.1 * cell.seed}
        fake_records.train(cell, root, reached + 0.1 * cell.seed, extra=extra)


def small(method: Method, k: int, seeds: Iterable[int] = (0, 1, 2), **changes: object) -> list[TrainingCell]:
    return [recipes.cell("small", "revnet18", method, k, seed, **changes) for seed in seeds]


def paper(k: int, seeds: Iterable[int] = (0, 1, 2), network: str = "revnet18", **changes: object) -> list[TrainingCell]:
    return [recipes.cell("paper", network, methods.PETRA, k, seed, **changes) for seed in seeds]


@situation(table2.EXHIBIT, "table2")
def paper_size_with_several_k_and_precisions(root: Path) -> None:
    """The published value is compared with the best epochs at the best k, and bf16 is in another table."""
    train(root, paper(2, (0, 1)), 94.9, best=95.1)
    train(root, paper(4, (0,)), 93.0, best=93.1)
    train(root, paper(2, (0,), precision="bf16", loader="memory"), 94.0, best=94.1)
    train(root, paper(2, (0,), "revnet50", precision="bf16"), 94.0, best=94.1)
    fake_records.train(recipes.cell("paper", "revnet34", methods.PETRA, 8), root, 94.0, epochs=41)


@situation(table2.EXHIBIT, "table2")
def other_recipes(root: Path) -> None:
    """Runs with the same network, method and k but another length or rate are other experiments."""
    train(root, paper(2, epochs=30, drops=()), 99.0)
    train(root, small(methods.PETRA, 2, learning_rate=0.3), 99.0)


def train_gap(root: Path, petra: float, seeds: Iterable[int]) -> None:
    """Write runs of PETRA and of backpropagation at 94.9 in their best epochs, at the paper's size."""
    exact = [recipes.cell("paper", "revnet18", methods.BACKPROPAGATION, 1, seed, batch_size=128) for seed in seeds]
    train(root, paper(2, seeds), 90.0, best=petra)
    train(root, exact, 90.0, best=94.9)


@situation(table2.EXHIBIT, "none")
def gap_as_published(root: Path) -> None:
    """A gap to backpropagation whose interval contains the published one agrees."""
    train_gap(root, 94.9, (0, 1, 2))


@situation(table2.EXHIBIT, "table2")
def gap_larger_than_published(root: Path) -> None:
    """A larger gap disagrees."""
    train_gap(root, 90.0, (0, 1, 2))


@situation(table2.EXHIBIT, "none")
def gap_with_one_seed(root: Path) -> None:
    """The gap stays open without an interval."""
    train_gap(root, 94.9, (0,))


@situation(table2.EXHIBIT, "table2-small-cifar10")
def small_scale_at_every_k(root: Path) -> None:
    """PETRA is paired with both batches in the last epoch, and states of unfinished and failed seeds are named."""
    first, second, third = small(methods.PETRA, 1)
    train(root, [first], 60.0, best=65.0)
    fake_records.train(second, root, 60.0, epochs=2)
    fake_records.train(third, root, 60.0, epochs=1).fail("out of memory", "8 GB asked for")
    train(root, small(methods.BACKPROPAGATION, 1, batch_size=64), 59.0)
    for k, (petra, exact) in {2: (63.0, 60.0), 4: (60.0, 62.0), 16: (61.0, 61.0)}.items():
        train(root, small(methods.PETRA, k), petra)
        train(root, small(methods.BACKPROPAGATION, k), exact)
