"""Means, intervals, paired differences and verdicts, against scipy and values computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from reproduce.show.statistics import Estimate, Judgement, Verdict, estimate, holm, judge, p_value, paired, verdict


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_interval_is_that_of_scipys_one_sample_t_test(n: int, confidence: float) -> None:
    values = np.random.default_rng(n).normal(94.0, 0.3, size=n)
    ours = estimate(values.tolist(), confidence)
    theirs = stats.ttest_1samp(values, popmean=0.0).confidence_interval(confidence)
    assert ours.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert ours.n == n


def test_interval_by_hand() -> None:
    # n = 2: the quantile of Student's t with one degree of freedom is tan(0.475 pi); spread of 1 and 3 is sqrt(2).
    found = estimate([1.0, 3.0])
    assert found.half_width == pytest.approx(math.tan(0.475 * math.pi), rel=1e-9)
    # n = 3: 4.302652729911275 (tables) * 1 / sqrt(3)
    assert estimate([1.0, 2.0, 3.0]).half_width == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)


def test_one_value_has_no_interval() -> None:
    assert estimate([94.9]) == Estimate(94.9, None, None, 1)
    assert estimate([94.9]).half_width is None


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert estimate([0.1] * 3).half_width == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_values_and_not_finite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="a mean needs"):
        estimate(values)


def test_a_mean_covers_the_truth_as_often_as_it_says() -> None:
    samples = np.random.default_rng(0).normal(size=(2000, 3))
    covered = [e.low <= 0 <= e.high for e in (estimate(s.tolist()) for s in samples)]  # type: ignore[operator]  # n = 3
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)


def test_pairing_removes_what_the_seeds_share() -> None:
    # Seeds differ by points, the methods by half a point at every seed: separate intervals overlap, paired ones do not.
    reference = {0: 90.0, 1: 95.0, 2: 92.0}
    ours = {0: 90.5, 1: 95.6, 2: 92.4}
    difference = paired(ours, reference)
    assert difference is not None
    assert difference.mean == pytest.approx(0.5)
    spread = math.sqrt((0.0**2 + 0.1**2 + 0.1**2) / 2)
    assert difference.half_width == pytest.approx(4.302652729911275 * spread / math.sqrt(3), rel=1e-9)
    assert difference.low is not None
    assert difference.low > 0
    assert estimate(list(ours.values())).low < estimate(list(reference.values())).mean  # type: ignore[operator]  # n = 3


def test_only_shared_seeds_are_paired() -> None:
    difference = paired({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.5, 0: 1.0, 3: -100.0})
    assert difference is not None
    assert (difference.mean, difference.n) == (0.25, 2)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 1.0}, {0: 2.0}) == Estimate(-1.0, None, None, 1)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.4, 0.3, Verdict.AGREE),
        (0.1, 0.2, Verdict.AGREE),  # there, but too small to matter
        (-0.5, 0.5, Verdict.AGREE),
        (0.1, 0.6, Verdict.DIFFER),
        (-3.0, -1.0, Verdict.DIFFER),
        (-0.1, 0.6, Verdict.CANNOT_TELL),
        (-30.0, 30.0, Verdict.CANNOT_TELL),
        (0.0, 0.0, Verdict.AGREE),
        (2.0, 2.0, Verdict.CANNOT_TELL),  # no spread seen: two seeds that differ by the same number of images
        (2.0, 2.0 + 1e-14, Verdict.CANNOT_TELL),
        (None, None, Verdict.CANNOT_TELL),
    ],
)
def test_verdict(low: float | None, high: float | None, expected: Verdict) -> None:
    mean = 0.0 if low is None or high is None else (low + high) / 2
    assert verdict(Estimate(mean, low, high, 1 if low is None else 3)) is expected


def test_verdict_without_shared_seeds_and_with_a_bad_margin() -> None:
    assert verdict(None) is Verdict.CANNOT_TELL
    with pytest.raises(ValueError, match="margin must be above 0, got 0"):
        verdict(Estimate(0.0, 0.0, 0.0, 2), margin=0)


# --- many comparisons


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("shift", [-2.0, 0.0, 0.1])
def test_p_is_that_of_scipys_one_sample_t_test(n: int, shift: float) -> None:
    values = np.random.default_rng(n).normal(shift, 0.3, size=n)
    assert p_value(estimate(values.tolist())) == pytest.approx(stats.ttest_1samp(values, popmean=0.0).pvalue, rel=1e-9)


@pytest.mark.parametrize(("low", "high", "below"), [(0.01, 1.0, True), (-0.01, 1.0, False), (-1.0, -0.01, True)])
def test_p_is_below_5_percent_where_the_interval_excludes_nought(low: float, high: float, below: bool) -> None:
    assert (p_value(Estimate((low + high) / 2, low, high, 3)) < 0.05) == below


def test_where_the_spread_is_not_known_p_is_1() -> None:
    assert p_value(Estimate(3.0, None, None, 1)) == 1.0
    assert p_value(estimate([2.0, 2.0])) == 1.0


def test_holm_by_hand() -> None:
    # Sorted: 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, and never below the one before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.4, 0.5]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.8]) == [1.0, 1.0]  # a p is at most 1
    assert holm([]) == []


def test_holm_calls_a_difference_wrongly_in_no_more_tables_than_it_says() -> None:
    samples = np.random.default_rng(1).normal(size=(1000, 24, 3))  # tables of 24 comparisons without a difference
    raw = stats.ttest_1samp(samples, popmean=0.0, axis=2).pvalue
    assert np.mean(raw.min(axis=1) < 0.05) > 0.6  # uncorrected, most tables have one
    assert np.mean([min(holm(table.tolist())) < 0.05 for table in raw]) < 0.07


def test_a_difference_stands_only_if_it_survives_its_table() -> None:
    clear, chance = estimate([5.0, 5.1, 5.2]), estimate([1.0, 1.6, 2.4])  # p = 0.00013 and 0.054
    alone = judge({"chance": estimate([1.0, 1.5, 1.9])})
    assert alone["chance"].verdict is Verdict.DIFFER
    assert alone["chance"].stands
    table = judge({"clear": clear, "chance": estimate([1.0, 1.5, 1.9]), "none": None, **dict.fromkeys("abc", chance)})
    assert table["clear"].stands
    assert table["chance"].verdict is Verdict.DIFFER
    assert not table["chance"].stands
    assert table["none"] == Judgement(None, Verdict.CANNOT_TELL, 1.0)


def test_a_single_seed_is_no_comparison_that_could_have_come_out_by_chance() -> None:
    chance = estimate([1.0, 1.5, 1.9])
    assert judge({"chance": chance, **dict.fromkeys("abc", estimate([1.0]))})["chance"].stands
    assert not judge({"chance": chance, **dict.fromkeys("abc", estimate([0.0, 1.0]))})["chance"].stands
