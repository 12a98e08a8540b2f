"""Test the scales: `paper` equals the paper, `small` differs as documented, and no recorded cell is lost."""

import dataclasses
from collections import Counter
from functools import partial
from itertools import product

import pytest

from petra_core import methods
from reproduce.cells.kinds import Cell, GradientsCell, TrainedCell, TrainingCell
from reproduce.grids import recipes, scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import PLANS, accuracy, figure4, gradients, invertible, sweeps, table2, table4
from reproduce.records.record import State, Status

PLAIN = methods.BACKPROPAGATION
# data set: image size, stem, epochs, drops, weight decay, augmentation, baseline's batch, its learning rate, seeds
PAPER = {
    "cifar10": (32, "cifar", 300, (150, 225), 5e-4, "flip_crop", 128, 0.05, (0, 1, 2)),
    "cifar100": (32, "cifar", 300, (150, 225), 5e-4, "flip_crop", 128, 0.05, (0, 1, 2)),
    "imagenet32": (32, "imagenet32", 90, (30, 60, 80), 1e-4, "flip_crop", 128, 0.05, (0,)),
    "imagenet": (224, "imagenet", 90, (30, 60, 80), 1e-4, "random_resized_crop", 256, 0.1, (0,)),
}


def of_training(cells: list[Cell]) -> list[TrainingCell]:
    assert all(isinstance(cell, TrainingCell) for cell in cells)
    return [cell for cell in cells if isinstance(cell, TrainingCell)]


@pytest.mark.parametrize("dataset", PAPER)
def test_baseline_of_paper_updates_after_every_batch(dataset: str) -> None:
    """A baseline of the paper has k = 1, and the published batch size and learning rate."""
    *_, batch, rate, _ = PAPER[dataset]
    cell = sweeps.PAPER.baseline(dataset, "resnet50", 1)
    assert (cell.batch_size, cell.accumulation, cell.method) == (batch, 1, "BACKPROPAGATION")
    assert cell.learning_rate == pytest.approx(rate, rel=1e-12)
    same = dataclasses.replace(cell, batch_size=64, learning_rate=0.025, method="PETRA")
    assert same == recipes.cell("paper", "resnet50", methods.PETRA, 1, 1, dataset=dataset)


def test_paper_scale_covers_all_exhibits_of_the_paper() -> None:
    """Scale paper contains all cells of Table 2, Table 4 and the gradient study, the authors' k first."""
    cells = of_training(table2.cells("paper"))
    made = Counter((c.dataset, c.model, c.method, c.accumulation, c.batch_size, c.seed) for c in cells)
    assert made == Counter(
        (dataset, f"{family}{depth}", method, k, batch, seed)
        for dataset in ("cifar10", "imagenet32", "imagenet")
        for depth in (18, 34, 50)
        for seed in PAPER[dataset][-1]
        for family, method, ks, batch in (
            ("revnet", "PETRA", (1, 2, 4, 8, 16, 32), 64),
            ("revnet", "BACKPROPAGATION", (1, 2, 4, 8, 16, 32), 64),
            ("resnet", "BACKPROPAGATION", (1, 2, 4, 8, 16, 32), 64),
            ("revnet", "BACKPROPAGATION", (1,), PAPER[dataset][6]),
            ("resnet", "BACKPROPAGATION", (1,), PAPER[dataset][6]),
        )
        for k in ks
    )
    assert (cells[0].model, cells[0].method, cells[0].accumulation) == ("revnet18", "PETRA", 2)  # the authors' k first
    ablation = of_training(table4.cells("paper"))
    assert len(ablation) == 2 * 3 * 4 * 3
    compared = ("DELAYED_GRADIENTS", "DSP", "APPROXIMATE_INPUTS", "PETRA")
    expected = product(("cifar100", "cifar10"), ("revnet18", "revnet34", "revnet50"), compared, (1,))
    assert {(c.dataset, c.model, c.method, c.accumulation) for c in ablation} == set(expected)
    assert {(c.model, c.dataset, c.epochs) for c in gradients.cells("paper") if isinstance(c, GradientsCell)} == {
        ("revnet18", "cifar10", 300)
    }


def test_paper_scale_follows_the_recipe_of_the_paper() -> None:
    """The cells of the paper's exhibits have the recipe of the paper."""
    recipe = ("width", "epochs", "drops", "warmup_epochs", "drop_factor", "momentum", "weight_decay", "batch_size")
    for module in (table2, figure4, table4, gradients, accuracy, invertible):
        for cell in module.cells("paper"):
            assert isinstance(cell, TrainedCell)
            image_size, stem, epochs, drops, weight_decay, augmentation, batch, _, _ = PAPER[cell.dataset]
            fixed = cell.method == "BACKPROPAGATION" and cell.batch_size != 64
            expected = (64, epochs, drops, 5.0, 0.1, 0.9, weight_decay, batch if fixed else 64)
            assert tuple(getattr(cell, name) for name in recipe) == expected, cell.name
            assert (cell.image_size, cell.augmentation) == (image_size, augmentation)
            assert cell.stem == stem or cell.model.startswith("chain")
            assert cell.learning_rate == pytest.approx(0.1 * cell.batch_size * cell.accumulation / 256, rel=1e-12)
            assert (cell.loader, cell.precision) == ("ffcv", "float32")


def test_small_scale_differs_from_paper_as_documented() -> None:
    """A cell of scale small differs from that of scale paper only in the documented settings."""
    cell = recipes.cell("small", "revnet18", methods.PETRA, 8, 1)
    ours = cell.to_dict()
    papers = recipes.cell("paper", "revnet18", methods.PETRA, 8, 1).to_dict()
    different = {name: (ours[name], papers[name]) for name in ours if ours[name] != papers[name]}
    assert different == {
        "scale": ("small", "paper"),
        "width": (8, 64),
        "batch_size": (32, 64),
        "epochs": (3, 300),
        "warmup_epochs": (0.5, 5.0),
        "drops": ((2,), (150, 225)),
        "learning_rate": (0.1, 0.2),  # the same rule
        "loader": ("memory", "ffcv"),  # the same images in the same order
    }


def test_recorded_cells_keep_their_names() -> None:
    """Committed records are found by these names. An accidental change of a setting would hide hours of runs."""
    small, invertible = partial(recipes.cell, "small"), "invertible_revnet18"
    for cell, name in (
        (small("revnet18", methods.PETRA, 1, 0), "cifar10-revnet18-w8-petra-k1-s0-43a15c9f41f4"),
        (small("revnet18", PLAIN, 4, 0), "cifar10-revnet18-w8-backpropagation-k4-s0-c8028dc2cb30"),
        (small("resnet18", PLAIN, 1, 0), "cifar10-resnet18-w8-backpropagation-k1-s0-10da8202d33c"),
        (sweeps.SMALL.baseline("cifar10", "revnet18", 2), "cifar10-revnet18-w8-backpropagation-k1-s2-4b0a84694aaf"),
        (small("chain8", methods.DSP, 16, 1), "cifar10-chain8-w16-dsp-k16-s1-415759db4698"),
        (small(invertible, accumulation=4), "cifar10-invertible_revnet18-w8-petra-k4-s0-d57de4545448"),
        (recipes.cell("paper", "revnet18", methods.PETRA, 2, 0), "cifar10-revnet18-w64-petra-k2-s0-8382e33266ba"),
    ):
        assert cell.name == name


@pytest.mark.parametrize("name", scales.SCALES)
def test_grid_cells_are_unique_and_ordered_by_seed(name: str) -> None:
    """The cells of a grid have one scale and unique names, and are ordered by seed."""
    cells = grid_of(name)
    assert {cell.scale for cell in cells} == {name}
    assert len(set(cells)) == len({cell.name for cell in cells}) == len(cells)
    seeds = [cell.seed for cell in cells if isinstance(cell, TrainedCell)]
    assert seeds == sorted(seeds)


def test_no_plan_repeats_a_cell() -> None:
    for plan, scale in product(PLANS.values(), scales.SCALES):
        cells = plan(scale)
        assert len(set(cells)) == len(cells), (plan, scale)


def test_smoke_cells_of_a_network_have_one_recipe() -> None:
    """Within a network, only method, k, seed and the learning rate that follows from k differ."""
    varied = {"method", "accumulation", "seed", "learning_rate"}
    for network in ("revnet18", "resnet18", "chain8"):
        cells = [cell for cell in of_training(accuracy.cells("smoke")) if cell.model == network]
        assert len({str({name: v for name, v in cell.to_dict().items() if name not in varied}) for cell in cells}) == 1
        assert len({cell.learning_rate / cell.accumulation for cell in cells}) == 1


def test_falls_short_depends_on_k_status_and_accuracy() -> None:
    """Finished runs below the target and failed runs at k = 1 and 4 fall short; others do not."""
    for accumulation, status, reached, short in (
        (1, Status.DONE, 90.1, False),
        (1, Status.DONE, 90.0, True),
        (4, Status.DONE, 20.0, True),
        (32, Status.DONE, 20.0, False),
        (1, Status.FAILED, None, True),
        (1, Status.PARTIAL, None, False),
    ):
        cell = recipes.cell("smoke", accumulation=accumulation)
        assert scales.by_name("smoke").falls_short(cell, State(status), reached) is short
