"""Test Table 4: the verdict on the paper's statement about approximate inputs and current weights."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits import table4
from reproduce.grids import recipes
from reproduce.grids.plans.table4 import METHODS
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.frames import Frames
from reproduce.records.results import read
from tests import fake_records, sections


def write(root: Path, reached: dict[Method, float]) -> None:
    """Write three seeds of each method on RevNet-18, at 60 if not given."""
    for place, method in enumerate(methods.PAPER, 1):
        for seed in range(3 if method in METHODS else 0):
            accuracy = reached.get(method, 60.0) + 0.02 * (seed - 1) + 0.01 * seed * place
            fake_records.train(recipes.cell("small", "revnet18", method, 1, seed), root, accuracy)


def test_configurations_are_methods_with_those_buffers() -> None:
    """The four methods cover all combinations of kept inputs and kept weights."""
    kept = [(not method.reconstructs, method.stashes_weights) for method in METHODS]
    assert kept == [(True, True), (True, False), (False, True), (False, False)]


@sections.situation(table4.EXHIBIT)
def both_halves_lose_accuracy(root: Path) -> None:
    """Both effects and their difference are listed. The sentence is of the scale with differences, not a larger one."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), root, 94.0, epochs=1)
    write(root, {methods.APPROXIMATE_INPUTS: 58.0, methods.DSP: 59.5})


@sections.situation(table4.EXHIBIT, "none")
def larger_scale_only(root: Path) -> None:
    """Without differences at any scale the sentence says that they are not comparable yet."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), root, 94.0, epochs=1)


@pytest.mark.parametrize(
    ("inputs", "weights", "expected"),
    [
        (58.0, 59.5, ClaimVerdict.SAME),
        (59.5, 58.0, ClaimVerdict.NOT_SO),
        (58.0, 58.0, ClaimVerdict.NOT_SO),
        (None, 58.0, ClaimVerdict.UNKNOWN),
    ],
)
def test_table4_statement_is_judged_on_the_chain_only(
    tmp_path: Path, inputs: float | None, weights: float, expected: ClaimVerdict
) -> None:
    """The claim is judged on the chain, not on RevNet-18."""
    write(tmp_path, {methods.APPROXIMATE_INPUTS: 50.0})  # RevNet-18 reconstructs almost nothing
    for method, accuracy in ((methods.APPROXIMATE_INPUTS, inputs), (methods.DSP, weights)):
        for seed in range(3 if accuracy is not None else 0):
            cell = recipes.cell("small", "chain8", method, 1, seed)
            fake_records.train(cell, tmp_path, (accuracy or 0.0) + 0.02 * (seed - 1))
    (judged,) = sections.judged("table4", Frames(read(tmp_path)))
    assert judged.verdict is expected
