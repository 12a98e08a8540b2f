"""Table 4: the buffer ablation, against the configuration that keeps both, and against the paper's statement."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits import table4
from reproduce.grids import paper, small
from reproduce.published import Mark
from reproduce.show.content import MINUS, Section, Table, Tone
from tests import fake_records, sections

LEVEL = dict.fromkeys(table4.CONFIGURATIONS.values(), 60.0)


def section(root: Path) -> Section:
    return sections.made(table4.EXHIBIT, root)


def write(root: Path, reached: dict[Method, float], network: str = "revnet18", seeds: int = 3) -> None:
    for method, accuracy in reached.items():
        for seed in range(seeds):
            own = 0.01 * seed * (list(methods.ALL).index(method) + 1)
            fake_records.train(small.cell(network, method, 1, seed), root, accuracy + (seed - 1) + own)


def tables(found: Section) -> list[Table]:
    return [block for block in found.blocks if isinstance(block, Table)]


def test_each_configuration_is_the_method_with_those_buffers() -> None:
    for (inputs, weights), method in table4.CONFIGURATIONS.items():
        assert method.stashes_weights == weights
        assert method.reconstructs != inputs


def test_every_configuration_is_compared_with_the_one_that_keeps_both(tmp_path: Path) -> None:
    write(tmp_path, LEVEL | {methods.PETRA: 57.0})
    ablation, _ = tables(section(tmp_path))
    rows = {(row[0].text, row[1].text): row for row in ablation.rows}
    row = rows["RevNet-18, width 8", "PETRA"]
    assert [entry.text for entry in row[2:4]] == ["reconstructed", "current"]
    assert row[-2].raw == pytest.approx(-3.0, abs=0.1)
    assert row[-1].text == "differ"
    assert rows["RevNet-18, width 8", methods.DSP.title][-1].text == "agree"
    assert rows["RevNet-18, width 8", methods.DELAYED_GRADIENTS.title][-2].text == "reference"
    assert rows["Reversible chain of 8, width 16", "PETRA"][4].text == "not run"


@pytest.mark.parametrize(
    ("inputs", "weights", "said"), [(58.0, 59.5, "agree"), (59.5, 58.0, "disagree"), (58.0, 58.0, "disagree")]
)
def test_the_statement_is_about_the_two_halves(tmp_path: Path, inputs: float, weights: float, said: str) -> None:
    write(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: inputs, methods.DSP: weights})
    found = section(tmp_path)
    row = tables(found)[1].rows[0]
    assert [entry.raw for entry in row[2:5]] == pytest.approx([inputs - 60, weights - 60, inputs - weights], abs=0.1)
    assert row[1].mark is Mark.SECOND_HAND
    assert row[5].text == said
    assert f"RevNet-18, width 8: our data {said} with it" in found.findings[0].text
    assert found.findings[0].tone is Tone.PLAIN


def test_one_seed_cannot_tell(tmp_path: Path) -> None:
    write(tmp_path, LEVEL | {methods.APPROXIMATE_INPUTS: 50.0}, seeds=1)
    found = section(tmp_path)
    assert tables(found)[1].rows[0][5].text == "cannot tell"
    assert f"our data cannot tell ({MINUS}10.00 points)" in found.findings[0].text


def test_published_values_are_shown_as_unknown_where_the_paper_has_them(tmp_path: Path) -> None:
    for dataset in ("cifar100", "cifar10"):
        fake_records.train(paper.cell(dataset, "revnet34", methods.DSP, 1, epochs=300), tmp_path, 70.0, epochs=3)
    by_key = {table.key: table for table in tables(section(tmp_path))}
    papers = by_key["table4-paper-cifar100"]
    shown = [row[[column.name for column in papers.columns].index("published, %")] for row in papers.rows]
    assert {(entry.text, entry.mark) for entry in shown} == {("unknown", Mark.UNKNOWN)}
    assert len(shown) == 3 * 4
    assert "published, %" not in {column.name for column in by_key["table4-paper-cifar10"].columns}
