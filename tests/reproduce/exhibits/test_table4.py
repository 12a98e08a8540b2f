"""Table 4: what the data say to the paper's statement about the two halves."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits import table4
from reproduce.grids import recipes
from reproduce.grids.plans.table4 import METHODS
from reproduce.show.content import MINUS, Section, Tone
from tests import fake_records, sections

LEVEL = dict.fromkeys(METHODS, 60.0)
REVNET = "RevNet-18, width 8: F at a reconstructed input in 1 of 10 stages"


def section(root: Path, reached: dict[Method, float], seeds: int = 3) -> Section:
    for method, accuracy in reached.items():
        for seed in range(seeds):
            by_seed = 0.01 * seed * (list(methods.PAPER).index(method) + 1)
            fake_records.train(
                recipes.cell("small", "revnet18", method, 1, seed), root, accuracy + 0.02 * (seed - 1) + by_seed
            )
    return sections.made(table4.EXHIBIT, root)


def test_each_configuration_is_the_method_with_those_buffers() -> None:
    kept = [(not method.reconstructs, method.stashes_weights) for method in METHODS]
    assert kept == [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize(
    ("inputs", "weights", "said"), [(58.0, 59.5, "agree"), (59.5, 58.0, "disagree"), (58.0, 58.0, "disagree")]
)
def test_the_statement_is_about_the_two_halves(tmp_path: Path, inputs: float, weights: float, said: str) -> None:
    made = section(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: inputs, methods.DSP: weights})
    shown = sections.table(made, "table4-small-cifar10")
    names = methods.APPROXIMATE_INPUTS.title, methods.DSP.title, "inputs reconstructed less weights current"
    rows = [sections.entries(shown, REVNET, name) for name in names]
    differences = [row["", "less both kept"].raw for row in rows]
    assert differences == pytest.approx([inputs - 60, weights - 60, inputs - weights], abs=0.1)
    assert rows[-1]["", "verdict"].text == said
    (finding,) = made.findings
    assert f"points, our data {said} with it" in finding.text
    assert "uncorrected" in finding.text
    assert finding.tone is Tone.PLAIN


def test_a_scale_without_differences_leaves_the_sentence_to_one_that_has_them(tmp_path: Path) -> None:
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0, epochs=1)
    assert "both not comparable yet points" in sections.made(table4.EXHIBIT, tmp_path).sentence
    assert f"weights {MINUS}1.0" in section(tmp_path, LEVEL | {methods.DSP: 59.0}).sentence


def test_one_seed_cannot_tell(tmp_path: Path) -> None:
    made = section(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: 50.0}, seeds=1)
    assert f"{MINUS}10.00 points, our data cannot tell" in made.findings[0].text
