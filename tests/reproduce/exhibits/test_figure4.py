"""Test Figure 4: the verdicts on the paper's statement, and missing or failed runs."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import figure4
from reproduce.exhibits.figure4 import MATCHED
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import NARROW, SMALL
from reproduce.presentation.content import MINUS, NARROW_SPACE, TIMES, Section
from reproduce.presentation.statements import ClaimVerdict
from reproduce.presentation.statistics import estimate
from reproduce.records.frames import count_averaged_epochs
from tests import fake_records, sections

KEY = "figure4-small-cifar10"
UNKNOWN = ClaimVerdict.UNKNOWN


def write(root: Path, petra: dict[int, float], matched: dict[int, float], baseline: float | None = 60.0) -> None:
    """Write three seeds of each, with a spread of a few hundredths of a point."""
    for seed, shift in enumerate((0.0, 0.03, -0.03)):
        for method, by_k in ((methods.PETRA, petra), (methods.BACKPROPAGATION, matched)):
            for k, reached in by_k.items():
                by_seed = 0.02 * seed / k if method is methods.PETRA else 0.0
                fake_records.train(recipes.cell("small", "revnet18", method, k, seed), root, reached + shift + by_seed)
        if baseline is not None:
            fake_records.train(SMALL.baseline("cifar10", "revnet18", seed), root, baseline + shift)


def section(root: Path) -> Section:
    return sections.made(figure4.EXHIBIT, root)


@pytest.mark.parametrize(
    ("at_1", "at_32", "holds"),
    [
        (57.0, 59.99, (True, True, True)),
        (57.0, 57.5, (True, True, False)),  # the gap does not vanish
        (60.0, 60.0, (False, False, True)),  # there is no gap at any k
        (58.0, 57.0, (True, False, False)),  # the gap grows
        (57.0, None, (True, None, None)),
        (None, 60.0, (None, None, True)),
    ],
)
def test_figure4_statement_is_three_claims(
    tmp_path: Path, at_1: float | None, at_32: float | None, holds: tuple[bool | None, ...]
) -> None:
    """The three claims on the gap are judged independently. So few epochs decide none of them."""
    petra = {k: reached for k, reached in ((1, at_1), (32, at_32)) if reached is not None}
    write(tmp_path, petra, {}, baseline=60.0)
    judged = sections.judged("figure4", tmp_path)
    assert tuple(one.evidence[0].holds if one.evidence else None for one in judged) == holds
    assert [one.verdict for one in judged] == [UNKNOWN if known is None else ClaimVerdict.OPEN for known in holds]


def test_figure4_change_is_a_difference_of_differences(tmp_path: Path) -> None:
    """The change of the gap between k = 1 and k = 32 is estimated by a difference of differences."""
    write(tmp_path, {1: 57.0, 32: 59.0}, {1: 60.0, 32: 60.0})
    estimated = sections.judged("figure4", tmp_path)[1].evidence[0].estimate
    assert estimated is not None
    assert estimated.mean == pytest.approx(-2.0 + 0.02 * (1 - 1 / 32))


def test_final_accuracy_averages_last_ten_epochs_after_drop(tmp_path: Path) -> None:
    """The accuracy is averaged over the last ten epochs if there are ten after the last drop."""
    record = fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0)
    last = [line["test_accuracy"] for line in record.read().metrics][-10:]
    table = sections.table(section(tmp_path), "figure4-paper-cifar10")
    assert sections.entries(table, "1")["", "PETRA, %"].raw == pytest.approx(estimate(last).mean)
    assert "averaged over the last 10 epochs" in table.caption
    assert count_averaged_epochs(recipes.cell("paper", dataset="imagenet")) == 10  # 90 epochs with the last drop at 80
    assert count_averaged_epochs(recipes.cell("small")) == 1


def test_sentence_is_of_a_scale_with_differences(tmp_path: Path) -> None:
    """The sentence is about the scale that has differences, if the larger scale has none."""
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0, epochs=1)
    assert section(tmp_path).sentence == "PETRA and backpropagation have not both been trained yet (scale “paper”)."
    write(tmp_path, {1: 57.0}, {1: 60.0})
    assert section(tmp_path).sentence.startswith(
        f"After 3 epochs PETRA − backpropagation at the same effective batch is {MINUS}3.0{NARROW_SPACE}±"
    )


def test_figure4_reports_unfinished_and_failed_runs(tmp_path: Path) -> None:
    """Failed runs are counted next to the mean, and unfinished ones have their progress."""
    write(tmp_path, {1: 57.0}, {1: 60.0, 2: 60.0})
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 1, 3), tmp_path, 50.0, epochs=1).fail(
        "diverged", "nan"
    )
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 2, 0), tmp_path, 50.0, epochs=2)
    first, second = (sections.entries(sections.table(section(tmp_path), KEY), k) for k in ("1", "2"))
    assert first["", "PETRA, %"].text.endswith("(3 of 4; 1 diverged)")
    assert second["", "PETRA, %"].text == f"2 of 3 epochs; 2 {TIMES} not run"
    assert second[MATCHED, "PETRA − it"].text == "not comparable yet"


def test_figure4_narrow_scale_has_k_1_and_4(tmp_path: Path) -> None:
    for method in (methods.PETRA, methods.BACKPROPAGATION):
        fake_records.train(NARROW.cell("cifar10", "revnet18", method, 1), tmp_path, 80.0)
    rows = sections.table(section(tmp_path), "figure4-narrow-cifar10").rows
    assert [row[0].text for row in rows] == ["1", "4"]


def test_sentence_states_drop_of_backpropagation_with_k(tmp_path: Path) -> None:
    """If backpropagation itself is worse at large k, the sentence states it."""
    write(tmp_path, {1: 57.0, 32: 40.0}, {1: 60.0, 32: 40.0})
    assert (
        "Backpropagation itself falls from 60 % to 40 %: a larger k leaves fewer updates." in section(tmp_path).sentence
    )
