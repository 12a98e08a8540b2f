"""Test Figure 5: claims can disagree with the paper, and unknown values are marked."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure5, figure6
from reproduce.grids.plans import gradients as plan
from reproduce.presentation.content import Figure
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.gradients import BETWEEN, METHOD
from tests import fake_probes
from tests.sections import judged as judged_of
from tests.sections import made, table

SMALL, PAPER = ([c for c in plan.cells(scale) if isinstance(c, GradientsCell)] for scale in ("small", "paper"))


def closer_below_stage(boundary: int, seed: int) -> fake_probes.Value:
    """Return values with PETRA closer by cosine below a stage and further above it, and undecided by relative error."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float:
        if pair == BETWEEN or measure == "norm_ratio" or stage == 9:
            return 1.0
        ours = 0.05 + 0.001 * seed if stage < boundary else -0.05 - 0.001 * seed
        if measure == "relative_error":
            ours = 0.1 * (-1) ** seed
        return 0.5 + (ours if pair == METHOD else 0.0) + 0.01 * epoch

    return value


@pytest.mark.parametrize("cells", [SMALL, PAPER])
def test_figure5_gains_of_stages_and_their_mean(cells: list[GradientsCell], tmp_path: Path) -> None:
    """The gain of every stage and the mean over the stages are those of the measurements."""
    of_one = [cell for cell in cells if (cell.model, cell.accumulation) == ("revnet18", 1)]
    for cell in of_one:
        fake_probes.measure(cell, tmp_path, closer_below_stage(3, cell.seed), epochs=1)
    section = made(figure5.EXHIBIT, tmp_path)
    shown_table = table(section, f"figure5-{of_one[0].scale}")
    head = [(column.group, column.name) for column in shown_table.columns]
    gain = head.index(("cosine similarity", "PETRA closer by"))
    signs = [isinstance(row[gain].value, float) and float(row[gain].value) > 0 for row in shown_table.rows]
    assert signs == [*[True] * 3, *[False] * 8]
    shift = sum(cell.seed for cell in of_one) / len(of_one)
    assert shown_table.rows[-1][gain].value == pytest.approx(-(0.05 + 0.001 * shift) / 3)
    assert "closer to the end-to-end gradient than the delayed one at 3 of 9 stages on RevNet-18" in section.sentence


def test_figure5_claim_at_small_scale_uses_the_chain(tmp_path: Path) -> None:
    """RevNet-18 computes with a reconstructed input in only one of ten stages, so it decides nothing there."""
    for cell in SMALL:
        if cell.accumulation == 1:
            boundary = 0 if cell.model == "chain8" else 9
            fake_probes.measure(cell, tmp_path, closer_below_stage(boundary, cell.seed))
    (judged,) = judged_of("figure5", tmp_path)
    assert judged.verdict is ClaimVerdict.NOT_SO
    assert "chain of 8" in judged.found


def test_figure5_claim_at_paper_scale_agrees(tmp_path: Path) -> None:
    """At scale paper, the claim is judged on the network of the paper."""
    for cell in PAPER:
        if cell.accumulation == 1:
            fake_probes.measure(cell, tmp_path, closer_below_stage(9, cell.seed))
    (judged,) = judged_of("figure5", tmp_path)
    assert judged.verdict is ClaimVerdict.AGREE


def test_unfinished_single_seed_is_drawn_without_finding(tmp_path: Path) -> None:
    """A single unfinished seed is drawn and labelled, and gives no finding."""
    fake_probes.measure(SMALL[0], tmp_path, closer_below_stage(9, 0))
    fake_probes.measure(PAPER[0], tmp_path, closer_below_stage(9, 0), epochs=1)
    section = made(figure5.EXHIBIT, tmp_path)
    assert [block.key for block in section.blocks if isinstance(block, Figure)] == ["figure5-paper", "figure5-small"]
    assert "1 seed; seed 0: 1 of 300 epochs" in table(section, "figure5-paper").rows[0][0].text
    assert section.findings == []


def test_undefined_measure_is_marked_not_defined(tmp_path: Path) -> None:
    """A measure without any defined value has the hint not defined."""

    def no_cosine(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if measure == "cosine" else closer_below_stage(9, 0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, no_cosine)
    section = made(figure5.EXHIBIT, tmp_path)
    assert {entry.hint for row in table(section, "figure5-small").rows for entry in row[4:7]} == {"not defined"}


@pytest.mark.parametrize("epochs", [0, 1])
def test_figures_5_and_6_without_measurements_have_no_table(tmp_path: Path, epochs: int) -> None:
    """Cells that have begun without measurements give no table, sentence or finding."""
    fake_probes.measure(SMALL[0], tmp_path, lambda *_: None, epochs=epochs)
    for exhibit in (figure5.EXHIBIT, figure6.EXHIBIT):
        section = made(exhibit, tmp_path)
        assert all(isinstance(block, str) for block in section.blocks)
        assert (section.sentence, section.findings, section.count) == ("", [], "0 of 15 cells")
