"""Test that every cell has a command that runs exactly this cell."""

import shlex
from dataclasses import replace

import click
import pytest

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.commands import train as training
from reproduce.grids import recipes, rerun, scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import gradients
from reproduce.grids.selection import Selection
from tests.example_cells import FORWARD


@pytest.mark.parametrize("scale", scales.SCALES)
def test_command_of_a_grid_cell_selects_only_that_cell(scale: str) -> None:
    """A command with the values of only five settings also ran cells of other lengths and rates."""
    grid = grid_of(scale)
    in_two_precisions = [cell for cells in rerun.plan_by_meaning(scale).values() if len(cells) > 1 for cell in cells]
    for cell in [*grid[:: max(1, len(grid) // 10)], *in_two_precisions]:
        words = shlex.split(rerun.command(cell))
        assert words[:6] == ["python", "-m", "reproduce", "run", scale, "--only"]
        assert Selection(only=tuple(words[6:])).select(grid) == [cell]
    assert len({rerun.command(cell) for cell in grid}) == len(grid)


def test_command_in_another_precision_selects_the_planned_cell() -> None:
    """The command of a cell in another precision selects the planned cell and sets that precision."""
    planned = recipes.cell("small", "revnet18", methods.PETRA, 4, 1)
    run = replace(planned, precision="bf16", loader="ffcv")
    words = shlex.split(rerun.command(run))
    assert words[5:] == ["--only", f"name={planned.name}", "--loader", "ffcv", "--precision", "bf16"]
    chosen = Selection(only=(words[6],)).select(grid_of("small"))
    assert Selection(loader=words[8], precision=words[10]).variants(chosen) == [run]


def test_cell_outside_the_grid_has_train_command_or_none() -> None:
    """A cell outside the grid gets a `train` command, or none if no command can create it."""
    assert "reproduce train" in rerun.command(recipes.cell("smoke", epochs=7))
    left = replace(gradients.cells("small")[0], seed=1234)  # type: ignore[call-arg]  # the cell has a seed
    assert rerun.command(left) == ""


@pytest.mark.parametrize(
    "cell",
    [
        recipes.cell("smoke", scale="custom"),
        recipes.cell(
            "smoke", "chain8", methods.DSP, 3, 5, scale="custom", learning_rate=1 / 3, drops=(1, 2), precision="bf16"
        ),
        recipes.cell("smoke", scale="custom", drops=(), momentum=0.0, warmup_epochs=0.0),
        replace(FORWARD, scale="custom", guess="gaussian", target="local"),
        recipes.cell("smoke", scale="custom", method=methods.PETRA, timing="1f1b", stages=(3, 2, 2, 3)),
        recipes.cell("smoke", scale="custom", method=methods.PETRA, stages=(10,)),
        recipes.cell("smoke", "chain2", methods.PIPEDREAM_2BW, 8, 0, scale="custom"),
        recipes.cell("smoke", "chain2", methods.PIPEDREAM_2BW, 8, 0, scale="custom", timing="1f1b"),
    ],
    ids=lambda cell: cell.slug,
)
def test_command_of_a_custom_cell_gives_the_same_cell(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `train` command of a custom cell creates the same cell."""
    words = shlex.split(rerun.command(cell))
    assert words[:4] == ["python", "-m", "reproduce", "train"]
    made: list[Cell] = []
    original = training.cell_by_hand

    def note(settings: dict[str, object]) -> Cell:
        made.append(original(settings))
        raise click.UsageError("far enough")

    monkeypatch.setattr(training, "cell_by_hand", note)
    with pytest.raises(click.UsageError):
        training.train(words[4:], standalone_mode=False)
    assert made == [cell]
