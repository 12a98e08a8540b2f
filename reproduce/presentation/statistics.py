"""Estimate from a handful of seeds: means, shared spreads, unpaired differences, verdicts.

With two or three seeds the spread of a setting is hardly known: Student's factor is 12.7 for n = 2 and 4.3 for n = 3.
Pairing runs by their seed does not help. The same seed gives two methods the same initialisation and the same order of
the data, but rounding and delay decorrelate them within an epoch: over the committed records the correlation is about
zero. What does help is that all settings of a study (one network, one length of training) scatter alike. Therefore:

- A `ResidualSpread` is the variance of a study pooled over its settings, with Bartlett's test of homogeneity.
- An `Estimate` is a mean or a difference of means with its two-sided 95 % interval by Student's t. It uses the spread
  of the study. If the test rejects a common variance, it uses the variances of the samples, as Welch's test does.
- A `verdict` follows from the interval by one rule, which is stated in its docstring and printed in the report.
- Only the primary comparisons are corrected for their number, by Holm's method. All others are exploratory: they have
  intervals, and one in twenty of these excludes 0 where nothing differs.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CONFIDENCE = 0.95

#: Differences in points of accuracy below this are of no practical interest; part of the verdict's rule.
MARGIN_POINTS = 0.5


@dataclass(frozen=True)
class ResidualSpread:
    """The standard deviation of runs of one study that differ only in their seed.

    Attributes:
        deviation: Pooled standard deviation, in the unit of the values.
        freedom: Degrees of freedom: the number of runs minus the number of settings.
        settings: Number of settings with at least two runs.
        p: P-value of Bartlett's test that all settings have one variance; None with a single setting.

    """

    deviation: float
    freedom: int
    settings: int
    p: float | None

    @property
    def shared(self) -> bool:
        """True if the settings may share one variance: there are several, and the test does not reject it."""
        return self.p is not None and self.p >= 1 - CONFIDENCE


def pool(settings: Iterable[Sequence[float]]) -> ResidualSpread | None:
    """Pool the variances of settings.

    Args:
        settings: The values of each setting, a value per seed. Settings with a single value are ignored.

    Returns:
        The spread, or None if no setting has two values.

    """
    several = [values for values in settings if len(values) > 1]
    if not several:
        return None
    squares = [_squares(values) for values in several]
    freedoms = [len(values) - 1 for values in several]
    freedom, total = sum(freedoms), math.fsum(squares)
    p = _bartlett(squares, freedoms) if len(several) > 1 else None
    return ResidualSpread(math.sqrt(total / freedom), freedom, len(several), p)


def _bartlett(squares: Sequence[float], freedoms: Sequence[int]) -> float:
    """Return the p-value of Bartlett's test; 0 if only some settings have no spread at all, or one is too large."""
    from scipy import special  # not scipy.stats, which takes seconds to import

    freedom, total = sum(freedoms), math.fsum(squares)
    if min(squares) <= 0 or math.isinf(total):
        return 0.0 if total > 0 else 1.0
    logs = math.fsum(f * math.log(s / f) for s, f in zip(squares, freedoms, strict=True))
    more = len(squares) - 1
    correction = 1 + (math.fsum(1 / f for f in freedoms) - 1 / freedom) / (3 * more)
    return float(special.chdtrc(more, (freedom * math.log(total / freedom) - logs) / correction))


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean; infinity if it is too large, as for a loss of 1e200."""
    try:
        mean = math.fsum(values) / len(values)
        return math.fsum((value - mean) ** 2 for value in values)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, eq=False)
class ResidualStudy:
    """All runs of one network on one data set for one length, in one arithmetic, which share a residual variance.

    Attributes:
        title: Network, data set, length, scale and arithmetic, in words.
        spreads: Spread over seeds, by column of runs.

    """

    title: str
    spreads: dict[str, ResidualSpread] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means with its confidence interval.

    Attributes:
        mean: Mean or difference, in the unit of the values.
        low: Lower end of the interval; None if there is no interval.
        high: Upper end of the interval; None if there is no interval.
        counts: Number of runs of each sample.
        freedom: Degrees of freedom of the interval; None if there is no interval.

    """

    mean: float
    low: float | None
    high: float | None
    counts: tuple[int, ...]
    freedom: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval, or None."""
        return None if self.high is None else self.high - self.mean

    @property
    def n(self) -> str:
        """The number of runs of each sample: "3", "3 + 6"."""
        return " + ".join(map(str, self.counts))


Term = tuple[float, Sequence[float], ResidualSpread | None]  # weight, values, spread of the study


def combine_means(terms: Sequence[Term]) -> Estimate | None:
    """Estimate a sum of weighted means, such as a difference.

    A mean of values whose study shares its spread has that variance; any other has the variance of its values. Degrees
    of freedom follow Welch and Satterthwaite, and terms of one shared spread count as one variance. Within a study the
    degrees of freedom are therefore the study's, and for two samples with separate variances the test is Welch's.

    Args:
        terms: Weight, values and spread of each mean.

    Returns:
        The estimate, or None if a mean has no values. There is no interval if a mean has only one run, because nothing
        shows that this run scatters as the others do, or if a variance is too large for a number.

    Raises:
        ValueError: If a value is not finite.

    """
    for _, values, _ in terms:
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"a mean needs finite values, got {list(values)}; report failed runs as failed")
    if not all(values for _, values, _ in terms):
        return None
    mean = math.fsum(weight * math.fsum(values) / len(values) for weight, values, _ in terms)
    counts = tuple(len(values) for _, values, _ in terms)
    if min(counts) == 1:
        return Estimate(mean, None, None, counts)
    parts: dict[object, tuple[float, int]] = {}  # variance and degrees of freedom
    for place, (weight, values, spread) in enumerate(terms):
        n = len(values)
        shared = spread is not None and spread.shared
        variance = spread.deviation**2 if spread and shared else _squares(values) / (n - 1)
        key, freedom = (spread, spread.freedom) if spread and shared else (place, n - 1)
        parts[key] = (parts.get(key, (0.0, 0.0))[0] + weight**2 * variance / n, freedom)
    whole = math.fsum(part for part, _ in parts.values())
    if math.isinf(whole):
        return Estimate(mean, None, None, counts)
    if whole == 0:
        return Estimate(mean, mean, mean, counts, float(sum(freedom for _, freedom in parts.values())))
    effective = 1 / math.fsum((part / whole) ** 2 / freedom for part, freedom in parts.values())
    half = _factor(effective) * math.sqrt(whole)
    return Estimate(mean, mean - half, mean + half, counts, effective)


class Verdict(enum.Enum):
    """Verdict on an estimated difference in points of accuracy."""

    EQUAL = "equal"
    HIGHER = "higher"
    LOWER = "lower"
    OPEN = "open"


def verdict(difference: Estimate | None) -> Verdict:
    """Judge a difference by its 95 % interval.

    - Equal: the whole interval lies within ±margin. It is not enough that no difference was found.
    - Higher, lower: the interval excludes 0 and does not lie within ±margin.
    - Open: all other cases. The interval contains 0 and reaches beyond the margin (more seeds would help), a sample is
      a single run (there is no interval), there are no runs, or the values have no spread. A test set counts in steps
      of whole images, so equal values do not measure the spread.
    """
    if difference is None or difference.low is None or difference.high is None:
        return Verdict.OPEN
    if difference.low >= -MARGIN_POINTS and difference.high <= MARGIN_POINTS:
        return Verdict.EQUAL
    if without_spread(difference) or difference.low <= 0 <= difference.high:
        return Verdict.OPEN
    return Verdict.HIGHER if difference.mean > 0 else Verdict.LOWER


def without_spread(difference: Estimate) -> bool:
    """Return whether the values are equal up to the rounding of a subtraction, so that their spread is not known."""
    return difference.half_width is not None and 2 * difference.half_width <= 1e-9 * MARGIN_POINTS


def p_value(difference: Estimate | None) -> float:
    """Return the two-sided p-value of the test that the difference is 0; 1 if its spread is not known.

    It is below 5 % exactly if the interval excludes 0.
    """
    if difference is None or difference.half_width is None or without_spread(difference):
        return 1.0
    from scipy import special

    assert difference.freedom is not None  # there is an interval
    error = difference.half_width / _factor(difference.freedom)
    return float(2 * special.stdtr(difference.freedom, -abs(difference.mean) / error))


def _factor(freedom: float) -> float:
    """Return Student's factor: the half-width of an interval in units of the standard error."""
    from scipy import special

    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down method (Scand. J. Statist. 6, 1979), in their order.

    If all differences with a corrected p below 5 % are called real, at most 5 % of families contain a false one.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
