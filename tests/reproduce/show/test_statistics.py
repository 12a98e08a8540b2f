"""Means, intervals, paired differences and verdicts, against scipy and values computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from reproduce.show.compare import Sample
from reproduce.show.statistics import Estimate, Judgement, Verdict, estimate, holm, judge, p_value, verdict


@pytest.mark.parametrize(("n", "mean"), [(2, 94.0), (3, 0.0), (8, -0.1)])
def test_interval_and_p_are_those_of_scipys_one_sample_t_test(n: int, mean: float) -> None:
    values = np.random.default_rng(n).normal(mean, 0.3, size=n)
    ours = estimate(values.tolist())
    theirs = stats.ttest_1samp(values, popmean=0.0)
    interval = theirs.confidence_interval(0.95)
    assert ours.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (ours.low, ours.high, ours.n) == pytest.approx((interval.low, interval.high, n), rel=1e-12)
    assert p_value(estimate(values.tolist())) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_one_value_has_no_interval_and_equal_values_one_of_no_width_whose_p_is_1() -> None:
    assert estimate([94.9]) == Estimate(94.9, None, None, 1)
    assert estimate([94.9]).half_width is None
    assert estimate([0.1] * 3).half_width == pytest.approx(0.0, abs=1e-15)
    assert p_value(estimate([94.9])) == p_value(estimate([2.0, 2.0])) == 1.0
    for values in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="a mean needs"):
            estimate(values)


def test_pairing_removes_what_the_seeds_share_and_only_shared_seeds_are_paired() -> None:
    # Seeds differ by points, the methods by half a point at every seed: separate intervals overlap, paired ones do not.
    difference = (Sample({0: 90.5, 1: 95.6, 2: 92.4}) - Sample({0: 90.0, 1: 95.0, 2: 92.0})).estimate
    assert difference is not None
    assert difference.mean == pytest.approx(0.5)
    assert difference.half_width == pytest.approx(estimate([0.5, 0.6, 0.4]).half_width)
    assert (Sample({0: 1.0}) - Sample({1: 1.0})).estimate is None
    assert (Sample({0: 1.0}) - Sample({0: 2.0})).estimate == Estimate(-1.0, None, None, 1)


def test_verdict() -> None:
    for low, high, expected in (
        (-0.4, 0.3, Verdict.AGREE),
        (-0.5, 0.5, Verdict.AGREE),
        (0.1, 0.6, Verdict.DIFFER),
        (-0.1, 0.6, Verdict.CANNOT_TELL),
        (0.0, 0.0, Verdict.AGREE),
        (2.0, 2.0, Verdict.CANNOT_TELL),  # no spread seen: two seeds that differ by the same number of images
    ):
        assert verdict(Estimate((low + high) / 2, low, high, 3)) is expected, (low, high)
    assert verdict(Estimate(0.0, None, None, 1)) is verdict(None) is Verdict.CANNOT_TELL


def test_holm_by_hand() -> None:
    # Sorted: 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, and never below the one before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.4, 0.5]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.8]) == [1.0, 1.0]  # a p is at most 1
    assert holm([]) == []


def test_a_difference_stands_only_if_it_survives_its_table() -> None:
    clear, chance = estimate([5.0, 5.1, 5.2]), estimate([1.0, 1.6, 2.4])  # p = 0.00013 and 0.054
    alone = judge({"chance": estimate([1.0, 1.5, 1.9])})
    assert alone["chance"].verdict is Verdict.DIFFER
    assert alone["chance"].stands
    table = judge({"clear": clear, "chance": estimate([1.0, 1.5, 1.9]), "none": None, **dict.fromkeys("abc", chance)})
    assert table["clear"].stands
    assert table["chance"].verdict is Verdict.DIFFER
    assert not table["chance"].stands
    assert table["none"] == Judgement(None, Verdict.CANNOT_TELL, 1.0, family=5)
    # A single seed is no comparison that could have come out by chance.
    chance = estimate([1.0, 1.5, 1.9])
    assert judge({"chance": chance, **dict.fromkeys("abc", estimate([1.0]))})["chance"].stands
    assert not judge({"chance": chance, **dict.fromkeys("abc", estimate([0.0, 1.0]))})["chance"].stands


def test_a_small_difference_that_is_certain_does_not_stand() -> None:
    small = judge({"small": estimate([0.1, 0.11, 0.12])})["small"]
    assert (small.verdict, small.survives, small.stands) == (Verdict.AGREE, True, False)
