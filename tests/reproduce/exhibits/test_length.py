"""Test accuracy against the length of the training: the comparisons, and the sentences."""

from pathlib import Path

import pytest
from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits import length
from reproduce.grids import recipes
from reproduce.grids.plans import length as plan
from reproduce.presentation.content import Table
from tests import fake_records, sections


def write(root: Path, petra: dict[int, float], backpropagation: dict[int, float], seeds: int = 3) -> None:
    """Write seeds with a small spread; a length without a value has no run."""
    for seed in range(seeds):
        for method, by_epochs in ((methods.PETRA, petra), (methods.BACKPROPAGATION, backpropagation)):
            for epochs, reached in by_epochs.items():
                by_seed = 0.01 * seed * min(epochs, 9) if method is methods.PETRA else 0.0
                cell = plan.plan_cell("small", method, 1, epochs, seed)
                fake_records.train(cell, root, reached + 0.02 * seed + by_seed)


@sections.situation(length.EXHIBIT)
def lengths_with_three_seeds_and_one(root: Path) -> None:
    """The gap at every length has its runs and verdict, one run gives no interval, and the figure is of one k."""
    write(root, {3: 40.0, 9: 55.0}, {3: 52.0, 9: 60.0})
    write(root, {81: 49.0}, {81: 50.0}, seeds=1)
    for method in (methods.PETRA, methods.BACKPROPAGATION):
        fake_records.train(plan.plan_cell("small", method, 4, 3), root, 20.0)
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), root, 60.0, epochs=1)


@sections.situation(length.EXHIBIT)
def length_without_a_pair(root: Path) -> None:
    """Without a pair of runs there is no finding, and the figure contains the existing run."""
    write(root, {9: 48.0}, {}, seeds=1)


@sections.situation(length.EXHIBIT)
def length_without_runs(root: Path) -> None:
    """Without runs there is no table and no figure."""


@pytest.mark.parametrize(
    ("epochs", "gap", "expected"),
    [
        (27, 3.0, "after 27: against"),
        (27, 1.0, "after 27: not against"),
        (27, 2.0, "after 27: cannot tell"),
        (81, 0.1, "after 81: for"),
        (81, 3.0, "after 81: not for"),
    ],
)
def test_decision_rule_for_longer_training(tmp_path: Path, epochs: int, gap: float, expected: str) -> None:
    """The rule gives for, against or undecided according to the gap and the length."""
    write(tmp_path, {epochs: 80.0 - gap}, {epochs: 80.0})
    (table,) = (block for block in sections.made(length.EXHIBIT, tmp_path).blocks if isinstance(block, Table))
    assert [row[-1].text for row in table.rows if row[-1].text] == [expected]


def test_runs_at_lost_commits_are_counted_by_length() -> None:
    """Only finished runs count, which are those in the table."""
    runs = DataFrame(
        {
            "status": ["done"] * 4 + ["failed"],
            "traceable": [False, False, True, False, False],
            "epochs": [27, 9, 9, 9, 3],
        }
    )
    assert length.list_lost(runs) == [
        "At commits that cannot be looked up (see Provenance): 2 runs of 9 epochs and 1 run of 27 epochs."
    ]
    assert length.list_lost(runs[runs["traceable"]]) == []
