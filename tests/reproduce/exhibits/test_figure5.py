"""Figure 5: claims can come out against the paper, and what is not known is said."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure5, figure6
from reproduce.grids.plans import gradients as plan
from reproduce.modelling.gradients import BETWEEN, METHOD
from reproduce.show.content import Figure, Tone
from tests import fake_probes
from tests.sections import made, table

SMALL, PAPER = ([c for c in plan.cells(scale) if isinstance(c, GradientsCell)] for scale in ("small", "paper"))


def closer_below_stage(boundary: int, seed: int) -> fake_probes.Value:
    """PETRA closer by cosine below a stage and further above it; by relative error nobody can tell."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float:
        if pair == BETWEEN or measure == "norm_ratio" or stage == 9:
            return 1.0
        ours = 0.05 + 0.001 * seed if stage < boundary else -0.05 - 0.001 * seed
        if measure == "relative_error":
            ours = 0.1 * (-1) ** seed
        return 0.5 + (ours if pair == METHOD else 0.0) + 0.01 * epoch

    return value


@pytest.mark.parametrize(("cells", "tone"), [(SMALL, Tone.PLAIN), (PAPER, Tone.ALERT)])
def test_it_may_come_out_against_the_statement(cells: list[GradientsCell], tone: Tone, tmp_path: Path) -> None:
    of_one = [cell for cell in cells if (cell.model, cell.accumulation) == ("revnet18", 1)]
    for cell in of_one:
        fake_probes.measure(cell, tmp_path, closer_below_stage(3, cell.seed), epochs=1)
    section = made(figure5.EXHIBIT, tmp_path)
    shown = table(section, f"figure5-{of_one[0].scale}")
    head = [(column.group, column.name) for column in shown.columns]
    said, gain = (head.index(("cosine similarity", name)) for name in ("the statement", "PETRA closer by"))
    assert [row[said].text.split(" ")[0] for row in shown.rows] == [*["agree"] * 3, *["disagree"] * 6, "", "disagree"]
    shift = sum(cell.seed for cell in of_one) / len(of_one)
    assert shown.rows[-1][gain].value == pytest.approx(-(0.05 + 0.001 * shift) / 3)
    assert {row[-1].text for row in shown.rows} == {"cannot tell", ""}
    (finding,) = section.findings
    assert "by cosine similarity, our data disagree with it (3 of 9 stages closer)" in finding.text
    assert finding.tone is tone


def test_a_single_unfinished_seed_is_shown_and_claims_nothing(tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, closer_below_stage(9, 0))
    fake_probes.measure(PAPER[0], tmp_path, closer_below_stage(9, 0), epochs=1)
    section = made(figure5.EXHIBIT, tmp_path)
    assert [block.key for block in section.blocks if isinstance(block, Figure)] == ["figure5-paper", "figure5-small"]
    assert "1 seed; seed 0: 1 of 300 epochs" in table(section, "figure5-paper").rows[0][0].text
    assert {finding.tone for finding in section.findings} == {Tone.MISSING}  # one seed has no interval


def test_a_measure_that_is_defined_nowhere_is_said_to_be_so(tmp_path: Path) -> None:
    def no_cosine(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if measure == "cosine" else closer_below_stage(9, 0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, no_cosine)
    section = made(figure5.EXHIBIT, tmp_path)
    assert {entry.hint for row in table(section, "figure5-small").rows for entry in row[4:7]} == {"not defined"}
    assert "cosine" not in section.findings[0].text


@pytest.mark.parametrize("epochs", [0, 1])
def test_what_has_begun_and_measured_nothing_has_no_table(tmp_path: Path, epochs: int) -> None:
    fake_probes.measure(SMALL[0], tmp_path, lambda *_: None, epochs=epochs)
    for exhibit in (figure5.EXHIBIT, figure6.EXHIBIT):
        section = made(exhibit, tmp_path)
        assert all(isinstance(block, str) for block in section.blocks)
        assert (section.sentence, section.findings, section.count) == ("", [], "0 of 15 cells")
