"""Figure 4: accuracy against k, at PETRA's effective batch and at the paper's."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import figure4
from reproduce.exhibits.figure4 import FIXED, MATCHED
from reproduce.grids import paper, small
from reproduce.grids.plans import figure4 as plan
from reproduce.grids.plans.sweeps import ACCUMULATIONS, SMALL, SWEEPS
from reproduce.records.frames import averaged
from reproduce.show.content import MINUS, TIMES, Figure, Section, Tone
from reproduce.show.statements import Outcome
from reproduce.show.statistics import estimate
from tests import fake_records, sections


def write(root: Path, petra: dict[int, float], matched: dict[int, float], baseline: float | None = 60.0) -> None:
    """Three seeds of each, with a spread that all share and one of 0.02 that they do not."""
    for seed, shift in enumerate((0.0, 1.0, -1.0)):
        for method, by_k in ((methods.PETRA, petra), (methods.BACKPROPAGATION, matched)):
            for k, reached in by_k.items():
                own = 0.02 * seed / k if method is methods.PETRA else 0.0
                fake_records.train(small.cell("revnet18", method, k, seed), root, reached + shift + own)
        if baseline is not None:
            fake_records.train(SMALL.baseline("cifar10", "revnet18", seed), root, baseline + shift)


def section(root: Path) -> Section:
    return sections.made(figure4.EXHIBIT, root)


def outcomes(root: Path) -> dict[str, str]:
    """What our data say, by what PETRA is compared with."""
    found = sections.table(section(root), "figure4-small-cifar10-statement")
    return {row[0].text: row[-1].text for row in found.rows}


def test_a_gap_that_closes_agrees_with_the_paper_and_only_at_the_batch_where_it_does(tmp_path: Path) -> None:
    level = dict.fromkeys(ACCUMULATIONS, 60.0)
    write(tmp_path, {k: 60.0 - 3.0 / k**2 for k in ACCUMULATIONS}, level, baseline=64.0)
    assert outcomes(tmp_path) == {MATCHED: "agree", FIXED: "disagree"}  # at the fixed batch 4 points below at k = 32
    (finding,) = section(tmp_path).findings
    assert finding.tone is Tone.PLAIN  # the paper's statement is about another scale
    assert f"same effective batch, our data agree with it (k = 1: {MINUS}2.98" in finding.text
    assert "fixed batch, our data disagree with it" in finding.text


@pytest.mark.parametrize(
    ("at_1", "at_32", "outcome"),
    [
        (57.0, 59.99, Outcome.AGREE),
        (57.0, 57.5, Outcome.DISAGREE),  # not gone
        (60.0, 60.0, Outcome.DISAGREE),  # there never was one
        (58.0, 57.0, Outcome.DISAGREE),  # it grows
        (57.0, None, Outcome.CANNOT_TELL),
        (None, 60.0, Outcome.CANNOT_TELL),
    ],
)
def test_the_statement_is_three_claims(
    tmp_path: Path, at_1: float | None, at_32: float | None, outcome: Outcome
) -> None:
    petra = {k: reached for k, reached in ((1, at_1), (32, at_32)) if reached is not None}
    write(tmp_path, petra, {1: 60.0, 32: 60.0}, baseline=None)
    assert outcomes(tmp_path) == {MATCHED: outcome.value, FIXED: "cannot tell"}


def test_the_change_is_paired_over_seeds(tmp_path: Path) -> None:
    write(tmp_path, {1: 57.0, 32: 59.0}, {1: 60.0, 32: 60.0})
    found = sections.table(section(tmp_path), "figure4-small-cifar10-statement")
    change = sections.entries(found, MATCHED)["", "change"]
    assert change.raw == pytest.approx(-2.0 + 0.02 * (1 - 1 / 32))
    assert float(change.text.rpartition("±")[2]) < 0.1  # though each run is one point off


def test_the_last_ten_epochs_are_averaged_where_there_are_so_many_after_the_last_drop(tmp_path: Path) -> None:
    record = fake_records.train(paper.cell("cifar10", "revnet18", methods.PETRA, 1), tmp_path, 94.0)
    last = [line["test_accuracy"] for line in record.metrics()][-10:]
    found = sections.table(section(tmp_path), "figure4-paper-cifar10")
    assert found.rows[0][2].raw == pytest.approx(estimate(last).mean)
    assert "averaged over the last 10 epochs" in found.caption
    assert averaged(paper.cell("imagenet")) == 10  # 90 epochs, the last drop at 80
    assert averaged(small.cell()) == 1


def test_it_shows_every_seed_the_numbers_and_the_statement(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(ACCUMULATIONS, 58.0), dict.fromkeys(ACCUMULATIONS, 60.0))
    found = section(tmp_path)
    (figure,) = (block for block in found.blocks if isinstance(block, Figure))
    ElementTree.fromstring(figure.svg)
    assert "Backpropagation from 60 to 60; PETRA from 58.02 to 58" in figure.description
    numbers = sections.table(found, "figure4-small-cifar10")
    assert [row[0].raw for row in numbers.rows] == list(ACCUMULATIONS)
    assert {row[5].text for row in numbers.rows} == {"differ"}


def test_unfinished_and_failed_runs_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {1: 57.0}, {1: 60.0, 2: 60.0})
    fake_records.train(small.cell("revnet18", methods.PETRA, 1, 3), tmp_path, 50.0, epochs=1).fail("diverged", "nan")
    fake_records.train(small.cell("revnet18", methods.PETRA, 2, 0), tmp_path, 50.0, epochs=2)
    numbers = sections.table(section(tmp_path), "figure4-small-cifar10")
    assert numbers.rows[0][2].text.endswith("(3 of 4; 1 diverged)")
    assert numbers.rows[1][2].text == f"2 of 3 epochs; 2 {TIMES} not run"
    assert numbers.rows[1][4].text == "no pair"


def test_its_cells_are_those_of_table_2() -> None:
    for sweep in SWEEPS:
        cells = plan.cells(sweep.scale)
        assert len(cells) == sum(len(sweep.seeds(dataset)) for dataset in sweep.datasets) * (2 * 6 + 1)
        assert {cell.model for cell in cells if isinstance(cell, TrainingCell)} == {"revnet18"}
