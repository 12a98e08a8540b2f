"""Figure 4: what the data say to the paper's statement, and runs that are not as they should be."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import figure4
from reproduce.exhibits.figure4 import FIXED, MATCHED
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import ACCUMULATIONS, NARROW, SMALL
from reproduce.records.frames import averaged
from reproduce.show.content import MINUS, TIMES, Entry, Section, Tone
from reproduce.show.statements import Outcome
from reproduce.show.statistics import estimate
from tests import fake_records, sections

KEY = "figure4-small-cifar10"
AGREE, DISAGREE, CANNOT_TELL = Outcome.AGREE, Outcome.DISAGREE, Outcome.CANNOT_TELL


def write(root: Path, petra: dict[int, float], matched: dict[int, float], baseline: float | None = 60.0) -> None:
    """Three seeds of each, with a spread of a few hundredths of a point."""
    for seed, shift in enumerate((0.0, 0.03, -0.03)):
        for method, by_k in ((methods.PETRA, petra), (methods.BACKPROPAGATION, matched)):
            for k, reached in by_k.items():
                by_seed = 0.02 * seed / k if method is methods.PETRA else 0.0
                fake_records.train(recipes.cell("small", "revnet18", method, k, seed), root, reached + shift + by_seed)
        if baseline is not None:
            fake_records.train(SMALL.baseline("cifar10", "revnet18", seed), root, baseline + shift)


def section(root: Path) -> Section:
    return sections.made(figure4.EXHIBIT, root)


def claims(root: Path, name: str) -> list[tuple[Entry, Entry]]:
    """Of each claim the difference that it is about and what our data say, where PETRA is compared with this."""
    table = sections.table(section(root), KEY)
    places = [place for place, column in enumerate(table.columns) if column.group == name][1:]
    return [(row[places[0]], row[places[1]]) for row in table.rows[-3:]]


def said(root: Path, name: str) -> list[str]:
    return [outcome.text for _, outcome in claims(root, name)]


def test_a_gap_that_closes_agrees_with_the_paper_and_only_at_the_batch_where_it_does(tmp_path: Path) -> None:
    level = dict.fromkeys(ACCUMULATIONS, 60.0)
    write(tmp_path, {k: 60.0 - 3.0 / k**2 for k in ACCUMULATIONS}, level, baseline=64.0)
    assert said(tmp_path, MATCHED) == ["agree"] * 3
    assert said(tmp_path, FIXED) == ["agree", "agree", "disagree"]  # at the fixed batch 4 points below at k = 32
    (finding,) = section(tmp_path).findings
    assert finding.tone is Tone.PLAIN  # the paper's statement is about another scale
    assert f"same effective batch, our data agree with it ({MINUS}3.0 at k = 1" in finding.text
    assert "fixed batch, our data disagree with it" in finding.text
    assert "uncorrected" in finding.text


@pytest.mark.parametrize(
    ("at_1", "at_32", "outcomes"),
    [
        (57.0, 59.99, (AGREE, AGREE, AGREE)),
        (57.0, 57.5, (AGREE, AGREE, DISAGREE)),  # not gone
        (60.0, 60.0, (DISAGREE, DISAGREE, AGREE)),  # there never was one
        (58.0, 57.0, (AGREE, DISAGREE, DISAGREE)),  # it grows
        (57.0, None, (AGREE, CANNOT_TELL, CANNOT_TELL)),
        (None, 60.0, (CANNOT_TELL, CANNOT_TELL, AGREE)),
    ],
)
def test_the_statement_is_three_claims(
    tmp_path: Path, at_1: float | None, at_32: float | None, outcomes: tuple[Outcome, ...]
) -> None:
    petra = {k: reached for k, reached in ((1, at_1), (32, at_32)) if reached is not None}
    write(tmp_path, petra, {1: 60.0, 32: 60.0}, baseline=None)
    assert said(tmp_path, MATCHED) == [outcome.value for outcome in outcomes]
    assert said(tmp_path, FIXED) == ["cannot tell"] * 3


def test_the_change_is_a_difference_of_differences(tmp_path: Path) -> None:
    write(tmp_path, {1: 57.0, 32: 59.0}, {1: 60.0, 32: 60.0})
    change, _ = claims(tmp_path, MATCHED)[1]
    assert change.raw == pytest.approx(-2.0 + 0.02 * (1 - 1 / 32))


def test_the_last_ten_epochs_are_averaged_where_there_are_so_many_after_the_last_drop(tmp_path: Path) -> None:
    record = fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0)
    last = [line["test_accuracy"] for line in record.metrics()][-10:]
    table = sections.table(section(tmp_path), "figure4-paper-cifar10")
    assert sections.entries(table, "1")["", "PETRA, %"].raw == pytest.approx(estimate(last).mean)
    assert "averaged over the last 10 epochs" in table.caption
    assert averaged(recipes.cell("paper", dataset="imagenet")) == 10  # 90 epochs, the last drop at 80
    assert averaged(recipes.cell("small")) == 1


def test_a_scale_without_differences_leaves_the_sentence_to_one_that_has_them(tmp_path: Path) -> None:
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0, epochs=1)
    assert section(tmp_path).sentence.endswith("not comparable yet at k = 1, not comparable yet at k = 32.")
    write(tmp_path, {1: 57.0}, {1: 60.0})
    assert f"{MINUS}3.0 at k = 1" in section(tmp_path).sentence


def test_unfinished_and_failed_runs_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {1: 57.0}, {1: 60.0, 2: 60.0})
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 1, 3), tmp_path, 50.0, epochs=1).fail(
        "diverged", "nan"
    )
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 2, 0), tmp_path, 50.0, epochs=2)
    first, second = (sections.entries(sections.table(section(tmp_path), KEY), k) for k in ("1", "2"))
    assert first["", "PETRA, %"].text.endswith("(3 of 4; 1 diverged)")
    assert second["", "PETRA, %"].text == f"2 of 3 epochs; 2 {TIMES} not run"
    assert second[MATCHED, "PETRA − it"].text == "not comparable yet"


def test_the_narrow_scale_has_its_own_k_and_cannot_tell(tmp_path: Path) -> None:
    """It has k = 1 and 4 alone, and the statement is about k = 32."""
    for method in (methods.PETRA, methods.BACKPROPAGATION):
        fake_records.train(NARROW.cell("cifar10", "revnet18", method, 1), tmp_path, 80.0)
    rows = sections.table(section(tmp_path), "figure4-narrow-cifar10").rows
    assert [row[0].text for row in rows] == ["1", "4", "1: below", "1 less 32: below", "32: not below"]
    assert rows[-1][-1].text == "cannot tell"
