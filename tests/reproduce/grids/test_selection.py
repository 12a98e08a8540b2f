"""Test the selection of cells: every condition narrows it, and every value must exist."""

import dataclasses

import pytest

from petra_core import methods
from reproduce import published
from reproduce.cells.kinds import CellError, GradientsCell, TrainedCell
from reproduce.exhibits._exhibit import commands
from reproduce.grids import recipes, scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import PLANS, figure4, table2
from reproduce.grids.selection import Selection

CELLS = [
    recipes.cell("paper", network, method, k, seed, dataset=dataset)
    for dataset, seeds in (("cifar10", (0, 1, 2)), ("imagenet", (0,)))
    for network in ("revnet18", "resnet50")
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS)
    for k in (1, 4, 32)
    for seed in seeds
]


def choose(**conditions):
    return Selection(**{name: tuple(values) for name, values in conditions.items()}).select(CELLS)


def values(cells, setting):
    return {getattr(cell, setting) for cell in cells}


def test_values_widen_and_conditions_narrow_the_selection():
    """Several values of a condition widen the selection, and several conditions narrow it."""
    chosen = choose(k=["1", "4"], models=["revnet18"], datasets=["imagenet"])
    assert len(chosen) == 2 * 2
    assert values(chosen, "accumulation") == {1, 4}
    assert values(chosen, "model") == {"revnet18"}
    assert values(chosen, "dataset") == {"imagenet"}
    assert choose() == CELLS
    for name in ("DELAYED_GRADIENTS", "delayed-gradients", "Delayed_Gradients"):
        assert values(choose(methods=[name]), "method") == {"DELAYED_GRADIENTS"}
    assert values(choose(models=["RevNet-18"]), "model") == {"revnet18"}
    chosen = choose(only=["model=resnet50", "accumulation=4,32", "seed=2"])
    assert len(chosen) == 2 * 2
    assert values(chosen, "seed") == {2}
    assert choose(only=["k=4", "datasets=imagenet"]) == choose(k=["4"], datasets=["imagenet"])
    # One number is a number of seeds, several numbers are seeds.
    for seeds, expected in ((["1"], {0}), (["2"], {0, 1}), (["3"], {0, 1, 2}), (["0", "2"], {0, 2})):
        assert values(choose(seeds=seeds), "seed") == expected
    assert values(choose(seeds=["3"], datasets=["imagenet"]), "seed") == {0}


def test_tables_option_selects_the_cells_of_exhibits():
    """`--tables` selects the cells that the exhibits need, in the order of the grid."""
    scale = grid_of("paper")
    chosen = Selection(datasets=("imagenet",), k=("1", "4"), exhibits=("Table2", "figure4")).select(scale)
    needed = {*table2.cells("paper"), *figure4.cells("paper")}
    assert chosen == [
        cell for cell in scale if cell in needed and cell.dataset == "imagenet" and cell.accumulation in (1, 4)
    ]
    assert chosen


def test_single_plan_keeps_its_order():
    """A single plan is selected in its order, several plans in the order of the grid."""
    grid, planned = grid_of("small"), PLANS["staleness"]("small")
    alone = Selection(exhibits=("Staleness",), only=("seed=0,4",)).select(grid)
    assert alone == [cell for cell in planned if cell.seed in (0, 4)]
    place = {cell: place for place, cell in enumerate(grid)}
    assert alone != sorted(alone, key=place.__getitem__)
    both = Selection(exhibits=("staleness", "table2")).select(grid)
    assert both == sorted(both, key=place.__getitem__)


@pytest.mark.parametrize("scale", scales.SCALES)
def test_report_commands_select_the_cells_of_their_section(scale):
    """The commands in the report select exactly the cells of their section."""
    grid = grid_of(scale)
    for key in PLANS:
        for command in commands(key):
            *_, name, option, table = command.split()
            if name == scale:
                assert option == "--exhibits"
                chosen = Selection(exhibits=(table,)).select(grid)
                assert set(chosen) == set(PLANS[key](scale))


def test_tuples_and_numbers_are_selected_as_listed():
    """Tuples are selected in their listed form, and equal numbers in any form."""
    small = grid_of("small")
    for value in {cell.drops for cell in small if isinstance(cell, TrainedCell)}:
        text = "+".join(map(str, value)) or "none"
        assert {cell.drops for cell in Selection(only=(f"drops={text}",)).select(small)} == {value}
    spelled, field = (
        Selection(only=(f"{name}=momentum",)).select(small) for name in ("weight-prediction", "forward_weights")
    )
    assert spelled == field == [cell for cell in small if getattr(cell, "forward_weights", "") == "predicted"]
    exact, rounded = (Selection(only=(f"warmup_epochs={text}",)).select(small) for text in ("0.0", "0"))
    assert exact == rounded


def test_every_exhibit_of_the_paper_is_selectable_by_name():
    """Every exhibit of the paper selects cells by its name, and Figures 5 and 6 select the same ones."""
    small = grid_of("small")
    for row in published.read("exhibits"):
        assert Selection(exhibits=(row["key"],)).select(small), row["key"]
    five, six = (Selection(exhibits=(name,)).select(small) for name in ("Figure5", "figure6"))
    assert five == six  # the same measurements, over stages and over training
    assert all(isinstance(cell, GradientsCell) for cell in five)


def test_with_settings_replaces_loader_precision_and_timing():
    """Another loader, precision or timing gives other cells, without duplicates; unsupported ones are refused."""
    chosen = Selection(loader="memory", precision="tf32").variants(CELLS[:2])
    assert [(getattr(cell, "loader", ""), getattr(cell, "precision", "")) for cell in chosen] == [
        ("memory", "tf32")
    ] * 2
    assert not {cell.identity for cell in chosen} & {cell.identity for cell in CELLS}
    assert Selection().variants(CELLS) == CELLS
    timed = Selection(timing="1f1b").variants([recipes.cell("smoke")])
    assert timed == [recipes.cell("smoke", timing="1f1b")]
    assert timed == Selection(timing="1f1b+0.0").variants([recipes.cell("smoke")])
    twins = [CELLS[0], dataclasses.replace(CELLS[0], loader="memory")]
    assert len(Selection(loader="memory").variants(twins)) == 1, "what becomes the same is run once"
    small = grid_of("small")
    with pytest.raises(CellError, match=r"; add --only kind=") as refused:
        Selection(precision="bf16").variants(small)
    others = str(refused.value).partition("kind=")[2].partition(" ")[0].split(",")
    assert Selection(precision="bf16").variants([cell for cell in small if cell.kind in others])
