"""Test means, intervals, spreads, differences and verdicts against scipy, simulation and manual results."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from reproduce.presentation.compare import SeedSample
from reproduce.presentation.statistics import (
    Estimate,
    ResidualSpread,
    Verdict,
    combine_means,
    holm,
    p_value,
    pool,
    verdict,
)


def estimate(values: list[float]) -> Estimate:
    known = combine_means([(1.0, values, None)])
    assert known is not None
    return known


@pytest.mark.parametrize(("n", "mean"), [(2, 94.0), (3, 0.0), (8, -0.1)])
def test_interval_and_p_equal_scipy_one_sample_t_test(n: int, mean: float) -> None:
    """Mean, interval and p-value equal those of scipy's one-sample t-test."""
    values = np.random.default_rng(n).normal(mean, 0.3, size=n)
    ours = estimate(values.tolist())
    theirs = stats.ttest_1samp(values, popmean=0.0)
    interval = theirs.confidence_interval(0.95)
    assert ours.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert ours.counts == (n,)
    assert p_value(estimate(values.tolist())) == pytest.approx(theirs.pvalue, rel=1e-9)


def test_single_and_equal_values_have_p_1() -> None:
    """One value has no interval, equal values have one of zero width, and both have p = 1."""
    assert estimate([94.9]) == Estimate(94.9, None, None, (1,))
    assert estimate([94.9]).half_width is None
    assert estimate([0.1] * 3).half_width == pytest.approx(0.0, abs=1e-15)
    assert p_value(estimate([94.9])) == p_value(estimate([2.0, 2.0])) == p_value(None) == 1.0
    assert combine_means([(1.0, [], None)]) is None
    for values in ([1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="a mean needs"):
            estimate(values)


def test_pooled_spread_and_bartlett_equal_scipy() -> None:
    """The pooled spread and Bartlett's test equal those of numpy and scipy."""
    groups = [np.random.default_rng(n).normal(n, 0.4, size=2 + n % 3) for n in range(9)]
    spread = pool([group.tolist() for group in groups] + [[1.0], []])  # a single run contributes nothing to a spread
    assert spread is not None
    squares = sum(((group - group.mean()) ** 2).sum() for group in groups)
    freedom = sum(len(group) - 1 for group in groups)
    assert (spread.deviation, spread.freedom, spread.settings) == pytest.approx(
        (math.sqrt(squares / freedom), freedom, 9)
    )
    assert spread.p == pytest.approx(stats.bartlett(*groups).pvalue, rel=1e-9)
    assert pool([[1.0], [2.0]]) is None
    alone = pool([[1.0, 2.0]])
    assert alone is not None
    assert (alone.p, alone.shared) == (None, False), "one setting cannot show that others scatter alike"
    equal = pool([[1.0, 1.0], [1.0, 2.0]])
    assert equal is not None
    assert not equal.shared, "a setting without spread is not like the other"


def test_shared_spread_gives_the_pooled_t_test() -> None:
    """If the study contains exactly the two samples, the shared spread gives Student's two-sample test."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(1, 0.5, size=3), rng.normal(0, 0.5, size=6)
    spread = pool([ours.tolist(), theirs.tolist()])
    assert spread is not None
    assert spread.shared
    difference = combine_means([(1.0, ours.tolist(), spread), (-1.0, theirs.tolist(), spread)])
    scipys = stats.ttest_ind(ours, theirs)
    interval = scipys.confidence_interval(0.95)
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert p_value(difference) == pytest.approx(scipys.pvalue, rel=1e-9)
    assert difference.n == "3 + 6"


@pytest.mark.parametrize("spread", [None, ResidualSpread(0.5, 20, 10, 0.04)])
def test_without_shared_spread_it_is_welchs_test(spread: ResidualSpread | None) -> None:
    """Without a shared spread, interval and p-value equal those of Welch's test."""
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(1, 0.2, size=3), rng.normal(0, 2.0, size=5)
    difference = combine_means([(1.0, ours.tolist(), spread), (-1.0, theirs.tolist(), spread)])
    scipys = stats.ttest_ind(ours, theirs, equal_var=False)
    interval = scipys.confidence_interval(0.95)
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert p_value(difference) == pytest.approx(scipys.pvalue, rel=1e-9)


def test_single_run_gives_no_interval_and_empty_side_none() -> None:
    """A side with one run gives no interval, and an empty side no difference."""
    spread = ResidualSpread(0.5, 20, 10, 0.5)
    assert combine_means([(1.0, [2.0], spread), (-1.0, [1.0, 1.5], spread)]) == Estimate(0.75, None, None, (1, 2))
    assert combine_means([(1.0, [], spread), (-1.0, [1.0, 1.5], spread)]) is None


@pytest.mark.parametrize("huge", [1e100, 1e160, 1e308])
def test_huge_losses_raise_no_error(huge: float) -> None:
    """A loss that diverged may have a square that is too large for a number."""
    spread = pool([[huge, huge / 2], [1.0, 2.0]])
    assert spread is not None
    assert not spread.shared
    assert (estimate([huge, huge / 2]).low is None) == (huge > 1e154)


def test_samples_can_be_subtracted() -> None:
    """Samples with any seeds can be subtracted."""
    ours, theirs = SeedSample({0: 1.0, 1: 2.0}), SeedSample({5: 0.0, 6: 1.0, 7: 2.0})
    difference = ours - theirs
    assert difference.estimate is not None
    assert (difference.estimate.mean, difference.estimate.counts) == (0.5, (2, 3))


def test_verdict() -> None:
    """The verdict is equal, higher, lower or open according to the interval and the margin."""
    for low, high, expected in (
        (-0.4, 0.3, Verdict.EQUAL),
        (-0.5, 0.5, Verdict.EQUAL),
        (0.1, 0.6, Verdict.HIGHER),
        (-0.6, -0.1, Verdict.LOWER),
        (-0.1, 0.6, Verdict.OPEN),
        (0.0, 0.0, Verdict.EQUAL),
        (2.0, 2.0, Verdict.OPEN),  # no spread: two seeds that differ by the same number of images
    ):
        assert verdict(Estimate((low + high) / 2, low, high, (3,))) is expected, (low, high)
    assert verdict(Estimate(0.0, None, None, (1,))) is verdict(None) is Verdict.OPEN


def test_holm_by_hand() -> None:
    # Sorted: 0.01, 0.02, 0.03, 0.04, multiplied by 4, 3, 2, 1, and never less than the previous value.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.4, 0.5]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.8]) == [1.0, 1.0]  # a p-value is at most 1
    assert holm([]) == []


# --- simulation: a study of settings with three runs each, like the committed ones

SETTINGS, RUNS, DRAWS, DEVIATION = 8, 3, 1000, 0.25


def simulate(effect: float, deviations: np.ndarray, seed: int, *, pooled: bool = False) -> list[tuple[Estimate, bool]]:
    """Return the difference of the first two settings in many studies, and whether the spread was shared in each.

    Args:
        effect: The true difference.
        deviations: The true standard deviation of each setting.
        seed: Seed of the draws.
        pooled: Whether the spread is shared independent of the test of homogeneity.

    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        values = rng.normal(0.0, deviations[:, None], size=(SETTINGS, RUNS))
        values[0] += effect
        spread = pool(values.tolist())
        assert spread is not None
        spread = replace(spread, p=1.0) if pooled else spread
        first, second = (SeedSample(dict(enumerate(side)), spread=spread) for side in values[:2])
        estimated = (first - second).estimate
        assert estimated is not None
        found.append((estimated, spread.shared))
    return found


def covered(found: list[tuple[Estimate, bool]], effect: float) -> float:
    return float(
        np.mean(
            [
                difference.low is not None and difference.low <= effect <= (difference.high or 0.0)
                for difference, _ in found
            ]
        )
    )


def test_interval_coverage_is_95_percent() -> None:
    """Of 1,000 intervals 95 % contain the true value, within three standard errors (2.1 %), including the fallback."""
    alike = simulate(0.5, np.full(SETTINGS, DEVIATION), 0)
    assert covered(alike, 0.5) == pytest.approx(0.95, abs=0.021)
    assert np.mean([shared for _, shared in alike]) == pytest.approx(0.95, abs=0.021), "Bartlett's test at n = 3"


def test_welch_fallback_helps_with_unequal_spread() -> None:
    """With three runs the test misses some such settings: 81 % of the intervals contain the true value, not 95 %."""
    deviations = np.full(SETTINGS, DEVIATION)
    deviations[0] *= 5
    unlike = simulate(0.5, deviations, 1)
    assert np.mean([shared for _, shared in unlike]) < 0.5
    assert 0.78 < covered(unlike, 0.5) < 0.9
    assert covered(simulate(0.5, deviations, 1, pooled=True), 0.5) < covered(unlike, 0.5) - 0.1
