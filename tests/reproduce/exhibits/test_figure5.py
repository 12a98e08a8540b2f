"""Figure 5: numbers and claims are those of the records, scale by scale, and can come out against the paper."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure5
from reproduce.exhibits.gradients import BETWEEN, METHOD
from reproduce.grids.plans import gradients as plan
from reproduce.show.content import NARROW_SPACE, Figure, Section, Tone
from tests import fake_probes
from tests.sections import made, table

SMALL = [cell for cell in plan.cells("small") if isinstance(cell, GradientsCell)]
PAPER = [cell for cell in plan.cells("paper") if isinstance(cell, GradientsCell)]


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


def read(root: Path) -> Section:
    return made(figure5.EXHIBIT, root)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Section:
    root = tmp_path_factory.mktemp("records")
    for cell in SMALL:
        if (cell.model, cell.accumulation) == ("revnet18", 1):
            fake_probes.measure(cell, root, closer_below_stage(3, cell.seed))
    return read(root)


def test_claims_stage_by_stage_are_those_of_the_intervals(small: Section) -> None:
    rows = table(small, "figure5-statement-small").rows
    assert [row[1].text for row in rows] == [*map(str, range(9)), "mean"]  # the head is not in it
    assert [row[5].text.split()[0] for row in rows] == ["agree"] * 3 + ["disagree"] * 6 + ["disagree"]
    assert rows[-1][4].value == pytest.approx(-0.051 / 3)
    assert {row[7].text for row in rows} == {"cannot tell"}
    assert rows[0][4].text.startswith("+0.0510")
    assert {row[3].value for row in rows} == {3}


def test_the_finding_says_that_it_came_out_against_the_statement(small: Section) -> None:
    (finding,) = small.findings
    assert "ours, on average over the stages below the head, disagree." in finding.text
    assert "by cosine similarity disagree, PETRA the closer one at 3 of 9 stages" in finding.text
    assert "by relative error cannot tell, PETRA the closer one at 0 of 9 stages" in finding.text
    assert finding.tone is Tone.PLAIN


def test_numbers_are_means_over_seeds_and_what_is_not_run_is_said(small: Section) -> None:
    values = table(small, "figure5-small")
    assert len(values.rows) == 10
    assert values.rows[0][0].text == "RevNet-18, width 8, k = 1: 3 seeds"
    head = [column.name for column in values.columns]
    assert values.rows[0][head.index("delayed/e2e")].text == f"0.520{NARROW_SPACE}±{NARROW_SPACE}0.000"
    assert [row[2].text for row in values.rows] == list("KREKEKEKEK")
    assert any("Reversible chain of 8" in note and "0 of 3 seeds; seed 0: not run" in note for note in values.notes)


def test_a_single_unfinished_seed_is_shown_and_claims_nothing(tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, closer_below_stage(9, 0))
    fake_probes.measure(PAPER[0], tmp_path, closer_below_stage(9, 0), epochs=1)
    found = read(tmp_path)
    assert [block.key for block in found.blocks if isinstance(block, Figure)] == ["figure5-paper", "figure5-small"]
    assert "1 of 300 epochs" in found.findings[0].text
    assert {finding.tone for finding in found.findings} == {Tone.MISSING}  # one seed has no interval


def test_a_measure_that_is_defined_nowhere_is_said_to_be_so(tmp_path: Path) -> None:
    def no_cosine(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if measure == "cosine" else closer_below_stage(9, 0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, no_cosine)
    found = read(tmp_path)
    assert table(found, "figure5-small").rows[0][3].hint == "not defined"
    assert [row[4].hint for row in table(found, "figure5-statement-small").rows] == ["not defined"] * 10
    assert "by cosine similarity not defined, PETRA the closer one at 0 of 0 stages" in found.findings[0].text


def test_what_has_begun_and_measured_nothing_has_no_table(tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, closer_below_stage(9, 0), epochs=0)
    found = read(tmp_path)
    assert all(isinstance(block, str) for block in found.blocks)
    assert found.coverage == "small: 0 of 9 runs finished"
