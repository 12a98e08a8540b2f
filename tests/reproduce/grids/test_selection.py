"""Test the selection of cells: every condition narrows it, and every value must exist."""

import dataclasses

import pytest

from petra_core import methods
from reproduce import published
from reproduce.cells.kinds import CellError, GradientsCell, TrainedCell, TrainingCell
from reproduce.exhibits._exhibit import commands
from reproduce.grids import recipes, scales, selection
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import PLANS, figure4, table2

CELLS = [
    recipes.cell("paper", network, method, k, seed, dataset=dataset)
    for dataset, seeds in (("cifar10", (0, 1, 2)), ("imagenet", (0,)))
    for network in ("revnet18", "resnet50")
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS)
    for k in (1, 4, 32)
    for seed in seeds
]


def choose(only=(), tables=(), seeds=(), **conditions):
    return selection.select(CELLS, conditions, tables=tables, seeds=seeds, only=only)


def values(cells, setting):
    return {getattr(cell, setting) for cell in cells}


def test_several_values_widen_and_several_conditions_narrow():
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
    # One number is a number of seeds, several numbers are seeds.
    for seeds, expected in ((["1"], {0}), (["2"], {0, 1}), (["3"], {0, 1, 2}), (["0", "2"], {0, 2})):
        assert values(choose(seeds=seeds), "seed") == expected
    assert values(choose(seeds=["3"], datasets=["imagenet"]), "seed") == {0}


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"models": ["revnet19"]}, "--models revnet19: no cell has model revnet19; did you mean revnet18"),
        ({"methods": ["delayed"]}, "no cell has method delayed; did you mean delayed_gradients?"),
        ({"datasets": ["imagnet"]}, "no cell has dataset imagnet; did you mean imagenet"),
        ({"k": ["3"]}, "no cell has accumulation 3; choose from 1, 4, 32"),
        ({"k": ["1", "two"]}, "no cell has accumulation two"),
        ({"seeds": ["1", "3"]}, "no cell has seed 3; choose from 0, 1, 2"),
        ({"seeds": ["-1"]}, "--seeds -1: expected a number from 1 to 3, or seeds"),
        ({"seeds": ["0"]}, "from 1 to 3, .* for seed 0, use --only seed=0"),
        ({"seeds": ["4"]}, "expected a number from 1 to 3"),
        ({"tables": ["figure3"]}, "--tables figure3: did you mean .*figure4"),
        ({"only": ["modle=revnet18"]}, "did you mean model"),
        (
            {"k": ["4"], "only": ["accumulation=1"]},
            "no cell of the scale paper fulfils --k 4 and --only accumulation=1: with --k 4 accumulation is 4$",
        ),
        (
            {"tables": ["length"], "seeds": ["0", "2"], "models": ["resnet50"]},
            "fulfils --tables length and --models resnet50: with --tables length model is revnet18$",
        ),
    ],
)
def test_what_no_cell_has_is_an_error_with_the_near_ones(conditions, message):
    with pytest.raises(CellError, match=message):
        choose(**conditions)


def test_tables_choose_the_cells_that_they_need():
    scale = grid_of("paper")
    chosen = selection.select(scale, {"datasets": ["imagenet"], "k": ["1", "4"]}, tables=["Table2", "figure4"])
    needed = {*table2.cells("paper"), *figure4.cells("paper")}
    assert chosen == [
        cell for cell in scale if cell in needed and cell.dataset == "imagenet" and cell.accumulation in (1, 4)
    ]
    assert chosen


def test_a_plan_in_its_own_order_keeps_it_where_it_is_asked_for_alone():
    grid, planned = grid_of("small"), PLANS["staleness"]("small")
    alone = selection.select(grid, {}, tables=["Staleness"], only=["seed=0,4"])
    assert alone == [cell for cell in planned if cell.seed in (0, 4)]
    place = {cell: place for place, cell in enumerate(grid)}
    assert alone != sorted(alone, key=place.__getitem__)
    both = selection.select(grid, {}, tables=["staleness", "table2"])
    assert both == sorted(both, key=place.__getitem__)


@pytest.mark.parametrize("scale", scales.SCALES)
def test_the_commands_of_the_report_choose_what_their_section_needs(scale):
    grid = grid_of(scale)
    for key in PLANS:
        for command in commands(key):
            *_, name, option, table = command.split()
            if name == scale:
                assert option == "--tables"
                chosen = selection.select(grid, {}, tables=[table])
                assert set(chosen) == set(PLANS[key](scale))


def test_tuples_and_numbers_are_given_as_they_are_listed():
    small = grid_of("small")
    for value in {cell.drops for cell in small if isinstance(cell, TrainedCell)}:
        text = "+".join(map(str, value)) or "none"
        assert {cell.drops for cell in selection.select(small, {}, only=[f"drops={text}"])} == {value}
    exact, rounded = (selection.select(small, {}, only=[f"warmup_epochs={text}"]) for text in ("0.0", "0"))
    assert exact == rounded
    with pytest.raises(CellError, match=r"no cell has drops 150; choose from [\d, ]*none"):
        selection.select(small, {}, only=["drops=150"])


def test_every_exhibit_of_the_paper_is_chosen_by_its_own_name():
    small = grid_of("small")
    for row in published.read("exhibits"):
        assert selection.select(small, {}, tables=[row["key"]]), row["key"]
    five, six = (selection.select(small, {}, tables=[name]) for name in ("Figure5", "figure6"))
    assert five == six  # the same measurements, over stages and over training
    assert all(isinstance(cell, GradientsCell) for cell in five)


def test_another_loader_or_precision_makes_other_cells():
    chosen = selection.with_settings(CELLS[:2], loader="memory", precision="tf32")
    assert [(cell.loader, cell.precision) for cell in chosen if isinstance(cell, TrainingCell)] == [
        ("memory", "tf32")
    ] * 2
    assert not {cell.identity for cell in chosen} & {cell.identity for cell in CELLS}
    assert selection.with_settings(CELLS) == CELLS
    timed = selection.with_settings([recipes.cell("smoke")], timing="1f1b")
    assert timed == [recipes.cell("smoke", timing="1f1b")]
    assert timed == selection.with_settings([recipes.cell("smoke")], timing="1f1b+0.0")
    with pytest.raises(CellError, match="BACKPROPAGATION passes one micro-batch at a time"):
        selection.with_settings([recipes.cell("smoke", method=methods.BACKPROPAGATION)], timing="1f1b")
    twins = [CELLS[0], dataclasses.replace(CELLS[0], loader="memory")]
    assert len(selection.with_settings(twins, loader="memory")) == 1, "what becomes the same is run once"
    with pytest.raises(CellError, match="loader must be ffcv or torchvision for imagenet, got 'memory'"):
        selection.with_settings(CELLS, loader="memory")
    small = grid_of("small")
    with pytest.raises(CellError, match=r"-forward-.*: the squares of guesses.*; --only kind=") as refused:
        selection.with_settings(small, precision="bf16")
    others = str(refused.value).partition("kind=")[2].partition(" ")[0].split(",")
    assert selection.with_settings([cell for cell in small if cell.kind in others], precision="bf16")
