"""Figure 5: curves, numbers and verdicts are those of the records, scale by scale."""

import csv
import io
from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure5
from reproduce.exhibits.gradients import BETWEEN, DELAYED, METHOD
from reproduce.records import results
from reproduce.show.content import NARROW_SPACE, Figure, Section, Table, Tone
from tests import fake_probes

SMALL = [cell for cell in figure5.cells("small") if isinstance(cell, GradientsCell)]
PAPER = [cell for cell in figure5.cells("paper") if isinstance(cell, GradientsCell)]


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


def section(root: Path) -> Section:
    return figure5.section(results.read(root))


def table(found: Section, key: str) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table) and block.key == key)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Section:
    root = tmp_path_factory.mktemp("records")
    for cell in SMALL:
        if (cell.model, cell.accumulation) == ("revnet18", 1):
            fake_probes.measure(cell, root, closer_below_stage(3, cell.seed))
    return section(root)


def test_verdicts_stage_by_stage_are_those_of_the_intervals(small: Section) -> None:
    rows = table(small, "figure5-statement-small").rows
    assert [row[1].text for row in rows] == [*map(str, range(9)), "mean"]  # the head is not in it
    assert [row[5].text.split()[0] for row in rows] == ["agree"] * 3 + ["disagree"] * 6 + ["disagree"]
    assert rows[-1][4].value == pytest.approx(-0.051 / 3)
    assert {row[7].text for row in rows} == {"cannot tell"}
    assert rows[0][4].text.startswith("+0.0510")
    assert {row[3].value for row in rows} == {3}


def test_the_finding_quotes_the_statement_and_counts(small: Section) -> None:
    (finding,) = small.findings
    assert finding.text.startswith("Figure 5: scale “small”.")
    assert "PETRA's gradient lies closer to the end-to-end gradient" in finding.text
    assert "second-hand" in finding.text
    assert "ours, on average over the stages below the head, disagree." in finding.text
    assert "by cosine similarity disagree, PETRA the closer one at 3 of 9 stages" in finding.text
    assert "by relative error cannot tell, PETRA the closer one at 0 of 9 stages" in finding.text
    assert finding.tone is Tone.PLAIN


def test_numbers_are_means_over_seeds_with_what_is_not_run_said(small: Section) -> None:
    values = table(small, "figure5-small")
    assert len(values.rows) == 10
    assert values.rows[0][0].text == "RevNet-18, width 8, k = 1: 3 seeds"
    head = [column.name for column in values.columns]
    assert values.rows[0][head.index("delayed/e2e")].text == f"0.520{NARROW_SPACE}±{NARROW_SPACE}0.000"
    assert [row[2].text for row in values.rows] == list("KREKEKEKEK")
    assert any("Reversible chain of 8" in note and "not run" in note for note in values.notes)
    lines = list(csv.DictReader(io.StringIO(values.csv())))
    assert len(lines) == 3 * 10
    assert float(lines[0][f"{METHOD}/cosine"]) == pytest.approx(0.57)
    assert float(lines[0][f"{DELAYED}/cosine"]) == pytest.approx(0.52)
    assert {line["micro_batches"] for line in lines} == {"15"}


def test_the_drawing_says_what_is_in_it(small: Section) -> None:
    (figure,) = [block for block in small.blocks if isinstance(block, Figure)]
    assert figure.key == "figure5-small"
    assert "RevNet-18, width 8, k = 1: the cosine of PETRA and end-to-end is 0.57 at the stem" in figure.description
    assert "reversible, evaluates F at a reconstructed input" in figure.caption
    assert "Not run at scale “paper”." in small.blocks
    assert figure.svg.count("#e69f00") >= 3  # a curve of the delayed gradient in each panel of a measure


def test_scales_have_figures_of_their_own(tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, closer_below_stage(9, 0))
    fake_probes.measure(PAPER[0], tmp_path, closer_below_stage(9, 0), epochs=1)
    found = section(tmp_path)
    assert [block.key for block in found.blocks if isinstance(block, Figure)] == ["figure5-small", "figure5-paper"]
    assert len(found.findings) == 2
    assert "1 of 300 epochs" in found.findings[1].text
    assert {finding.tone for finding in found.findings} == {Tone.MISSING}  # one seed has no interval


def test_without_records_it_says_so(tmp_path: Path) -> None:
    found = section(tmp_path)
    assert all(isinstance(block, str) for block in found.blocks)
    assert [finding.tone for finding in found.findings] == [Tone.MISSING]
    assert found.coverage.endswith("not run")
