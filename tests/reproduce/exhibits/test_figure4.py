"""Test Figure 4: the verdicts on the paper's statement, and missing or failed runs."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import figure4
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import NARROW, SMALL
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.frames import Frames, count_averaged_epochs
from reproduce.records.results import read
from tests import fake_records, sections

UNKNOWN = ClaimVerdict.UNKNOWN


def write(root: Path, petra: dict[int, float], matched: dict[int, float], baseline: float | None = 60.0) -> None:
    """Write three seeds of each, with a spread of a few hundredths of a point."""
    for seed, shift in enumerate((0.0, 0.03, -0.03)):
        for method, by_k in ((methods.PETRA, petra), (methods.BACKPROPAGATION, matched)):
            for k, reached in by_k.items():
                by_seed = 0.02 * seed / k if method is methods.PETRA else 0.0
                fake_records.train(recipes.cell("small", "revnet18", method, k, seed), root, reached + shift + by_seed)
        if baseline is not None:
            fake_records.train(SMALL.baseline("cifar10", "revnet18", seed), root, baseline + shift)


@pytest.mark.parametrize(
    ("at_1", "at_32", "holds"),
    [
        (57.0, 59.99, (True, True, True)),
        (57.0, 57.5, (True, True, False)),  # the gap does not vanish
        (60.0, 60.0, (False, False, True)),  # there is no gap at any k
        (58.0, 57.0, (True, False, False)),  # the gap grows
        (57.0, None, (True, None, None)),
        (None, 60.0, (None, None, True)),
    ],
)
def test_figure4_statement_is_three_claims(
    tmp_path: Path, at_1: float | None, at_32: float | None, holds: tuple[bool | None, ...]
) -> None:
    """The three claims on the gap are judged independently. So few epochs decide none of them."""
    petra = {k: reached for k, reached in ((1, at_1), (32, at_32)) if reached is not None}
    write(tmp_path, petra, {}, baseline=60.0)
    judged = sections.judged("figure4", Frames(read(tmp_path)))
    assert tuple(one.evidence[0].holds if one.evidence else None for one in judged) == holds
    assert [one.verdict for one in judged] == [UNKNOWN if known is None else ClaimVerdict.OPEN for known in holds]


def test_final_accuracy_averages_at_most_ten_epochs_after_the_drop() -> None:
    assert count_averaged_epochs(recipes.cell("paper", dataset="imagenet")) == 10  # 90 epochs with the last drop at 80
    assert count_averaged_epochs(recipes.cell("small")) == 1


@sections.situation(figure4.EXHIBIT)
def gap_at_k_1_with_failed_and_unfinished_runs(root: Path) -> None:
    """The sentence is of the scale with differences, not of a larger one. Failed and unfinished runs are counted."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), root, 94.0, epochs=1)
    write(root, {1: 57.0}, {1: 60.0, 2: 60.0})
    failed = fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 1, 3), root, 50.0, epochs=1)
    failed.fail("diverged", "nan")
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 2, 0), root, 50.0, epochs=2)


@sections.situation(figure4.EXHIBIT)
def larger_scale_only(root: Path) -> None:
    """Without a pair the sentence says so, and the accuracy is the mean of the ten epochs after the last drop."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), root, 94.0)


@sections.situation(figure4.EXHIBIT, "none")
def backpropagation_falls_with_k(root: Path) -> None:
    """If backpropagation itself is worse at large k, the sentence says so. The claim on the change is estimated."""
    write(root, {1: 57.0, 32: 40.0}, {1: 60.0, 32: 40.0})


@sections.situation(figure4.EXHIBIT)
def narrow_scale(root: Path) -> None:
    """The scale narrow has k = 1 and 4."""
    for k in (1, 4):
        for method in (methods.PETRA, methods.BACKPROPAGATION):
            fake_records.train(NARROW.cell("cifar10", "revnet18", method, k), root, 80.0)
