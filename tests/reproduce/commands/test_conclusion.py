"""Test the end of a run: means of comparable runs only, and every kind of problem reported once."""

import dataclasses
from pathlib import Path

import pytest

from petra_core.methods import BACKPROPAGATION, DSP, PETRA
from reproduce.cells.kinds import GradientsCell
from reproduce.commands import summary
from reproduce.commands.conclusion import conclude
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.grids.plans.transformers import IMAGES
from reproduce.grids.scales import Scale
from reproduce.records.record import Record, State, Status
from reproduce.running.runner import GridOutcome
from tests.fake_records import complexity_cell, train
from tests.messages import OUTPUTS, compare

CELLS = [recipes.cell("smoke", seed=seed) for seed in range(4)]
NOT_RUN = State(Status.NOT_RUN, 0, 4)


def lines(cells, root):
    return summary.table({cell: Record.for_cell(cell, root).state() for cell in cells}).splitlines()


def ended(state, *, k=1, result=None):
    """Return the outcome of a grid of one cell."""
    cell = recipes.cell("smoke", accumulation=k)
    return GridOutcome({cell: State(state, 4, 4, result={} if result is None else {"test_accuracy": result})})


PROBLEMS = dict.fromkeys(CELLS[:3], "data/imagenet: imagenet is not prepared. Log in at …")
FAILED = [State(Status.FAILED, 1, 4, reason) for reason in ("diverged", "out of memory")]
OUTCOMES = [
    (GridOutcome(dict.fromkeys(CELLS, NOT_RUN), {**PROBLEMS, CELLS[3]: "result.json: is damaged"}), "problems"),
    (GridOutcome(dict(zip(CELLS, [*FAILED, State(Status.PARTIAL, 1, 4)], strict=False))), "failures"),
    (ended(Status.DONE, result=95.0), "an accurate run"),
    (ended(Status.DONE, result=80.0), "an inaccurate run"),
    (ended(Status.DONE, k=32, result=12.0), "a run near chance"),
    (ended(Status.PARTIAL), "an unfinished run"),
]


@pytest.mark.parametrize(("outcome", "name"), OUTCOMES, ids=[name for _, name in OUTCOMES])
def test_conclusion_reports_what_is_missing_once(capsys, outcome, name):
    """The conclusion groups problems, counts failures by kind, and warns of inaccurate runs."""
    with pytest.raises(SystemExit) as caught:
        conclude(Scale("smoke", 90.0, (1, 4)), outcome, Path("else where"))
    output = capsys.readouterr()
    compare(OUTPUTS, f"conclusion: {name}", f"exit code {caught.value.code}\n{output.err}\n{output.out}")


def trained(root, cells, accuracies):
    for cell, accuracy in zip(cells, accuracies, strict=False):
        train(cell, root, accuracy)
    return cells


def missing_seeds(root):
    return [*trained(root, CELLS[:3], [95.0, 96.0]), recipes.cell("smoke", method=DSP, accumulation=4)]


def different_recipes(root):
    """Make runs whose tables must have headings that list only the differences."""
    changes = [{}, {"epochs": 1, "drops": (), "warmup_epochs": 0.5}, {"batch_size": 48}, {"warmup_epochs": 1}]
    changes.append({"learning_rate": 0.5})
    return trained(root, [recipes.cell("smoke", **change) for change in changes], range(91, 96))


def probed_runs(root):
    """Make runs of which a probed one repeats another, so that its seed must count once in the mean."""
    probed = [GradientsCell(**dataclasses.asdict(cell), probe_every=8) for cell in CELLS[:2]]
    return trained(root, [CELLS[0], *probed], (95.0, 95.0, 97.0))


def measured_cells(root):
    cells = [complexity_cell(method) for method in (PETRA, BACKPROPAGATION)]
    record = Record.for_cell(cells[0], root)
    record.begin({}, {})
    record.finish({"bytes": 1})
    return cells


def two_rules_of_the_rate(root):
    """Make runs of all k of AdamW, which share one table."""
    adamw = trained(root, [IMAGES.cell(PETRA, k) for k in (1, 4, 16)], (51.0, 52.0, 53.0))
    return [*adamw, recipes.cell("small", drops=())]


@pytest.mark.parametrize("make", [missing_seeds, different_recipes, probed_runs, measured_cells, two_rules_of_the_rate])
def test_summary_averages_comparable_runs_only(tmp_path, make):
    """The summary has a table for every recipe, with means, numbers of seeds and missing runs."""
    compare(OUTPUTS, f"summary: {make.__name__.replace('_', ' ')}", "\n".join(lines(make(tmp_path), tmp_path)))


def test_headings_of_a_summary_are_unique(tmp_path):
    headings = [line for line in lines(grid_of("small"), tmp_path) if line.endswith(":")]
    assert len(headings) == len(set(headings)) > 5
