"""Test Table 4: the verdict on the paper's statement about approximate inputs and current weights."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits import table4
from reproduce.grids import recipes
from reproduce.grids.plans.table4 import METHODS
from reproduce.presentation.content import MINUS, Section
from reproduce.presentation.statements import ClaimVerdict
from tests import fake_records, sections

LEVEL = dict.fromkeys(METHODS, 60.0)
REVNET = "RevNet-18, width 8: 1 of 10 stages computes with a reconstructed input"


def section(root: Path, reached: dict[Method, float], seeds: int = 3) -> Section:
    for method, accuracy in reached.items():
        for seed in range(seeds):
            by_seed = 0.01 * seed * (list(methods.PAPER).index(method) + 1)
            fake_records.train(
                recipes.cell("small", "revnet18", method, 1, seed), root, accuracy + 0.02 * (seed - 1) + by_seed
            )
    return sections.made(table4.EXHIBIT, root)


def test_configurations_are_methods_with_those_buffers() -> None:
    """The four methods cover all combinations of kept inputs and kept weights."""
    kept = [(not method.reconstructs, method.stashes_weights) for method in METHODS]
    assert kept == [(True, True), (True, False), (False, True), (False, False)]


def test_halves_and_their_difference_are_listed(tmp_path: Path) -> None:
    """The table lists the effect of reconstructed inputs, of current weights, and their difference."""
    made = section(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: 58.0, methods.DSP: 59.5})
    shown_table = sections.table(made, "table4-small-cifar10")
    names = methods.APPROXIMATE_INPUTS.title, methods.DSP.title, "reconstructed inputs − current weights"
    rows = [sections.entries(shown_table, REVNET, name) for name in names]
    differences = [row["", "− both kept"].raw for row in rows]
    assert differences == pytest.approx([-2.0, -0.5, -1.5], abs=0.1)
    assert rows[-1]["", "verdict"].text == "lower"


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
    section(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: 50.0})  # RevNet-18 reconstructs almost nothing
    for method, accuracy in ((methods.APPROXIMATE_INPUTS, inputs), (methods.DSP, weights)):
        for seed in range(3 if accuracy is not None else 0):
            cell = recipes.cell("small", "chain8", method, 1, seed)
            fake_records.train(cell, tmp_path, (accuracy or 0.0) + 0.02 * (seed - 1))
    (judged,) = sections.judged("table4", tmp_path)
    assert judged.verdict is expected


def test_table4_sentence_is_of_a_scale_with_differences(tmp_path: Path) -> None:
    """The sentence is about the scale that has differences, if the larger scale has none."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0, epochs=1)
    assert "both together by not comparable yet" in sections.made(table4.EXHIBIT, tmp_path).sentence
    assert f"current weights by {MINUS}1.0" in section(tmp_path, LEVEL | {methods.DSP: 59.0}).sentence
