"""What a handful of seeds can tell: means, intervals, paired differences, verdicts.

The obvious report of an experiment, a mean with a standard deviation behind a plus-minus sign, hides two things. With
two or three seeds the spread is itself hardly known, so the interval is far wider than it looks (Student's factor is
12.7 for n = 2, 4.3 for n = 3); and two methods that were run with the same seeds (same initialisation, same order of
the data) share most of their spread, which a comparison of two separate means throws away. So here:

- an `Estimate` is a mean with its two-sided 95 % interval by Student's t with n - 1 degrees of freedom, and n beside
  it; one value has no interval, and the absence is kept as None, not as a width of 0;
- two methods are compared by the estimate of the differences over the seeds that both have (`reproduce.show.compare`);
- a `verdict` is given by one rule, stated in its docstring and printed in the report;
- a table of many comparisons is judged as one family (`judge`): of intervals that hold 95 % of the time, one in twenty
  excludes 0 though nothing differs, so beside each verdict it is kept whether it stands up to Holm's correction.
"""

import enum
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

CONFIDENCE = 0.95

#: Points of accuracy below which a difference is of no practical interest; part of the verdict's rule.
MARGIN_POINTS = 0.5


@dataclass(frozen=True)
class Estimate:
    """A mean, and how far it can be trusted."""

    mean: float  # arithmetic mean, in the unit of the values
    low: float | None  # lower end of the interval; None if n = 1
    high: float | None  # upper end of the interval; None if n = 1
    n: int

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None if there is none."""
        return None if self.high is None else self.high - self.mean


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and two-sided 95 % interval of independent values by Student's t.

    Raises: ValueError: there are no values, or one is not finite.
    """
    if not values:
        raise ValueError("a mean needs at least one value, got none")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(
            f"a mean needs finite values, got {list(values)}; leave failed runs out and report them as failed"
        )
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = _factor(n - 1) * spread / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


class Verdict(enum.Enum):
    """What an estimated difference says."""

    AGREE = "agree"
    DIFFER = "differ"
    CANNOT_TELL = "cannot tell"


def verdict(difference: Estimate | None) -> Verdict:
    """Judge a difference by its 95 % interval.

    - agree: the whole interval lies within ±margin. The difference is shown to be small; that a difference was not
      found would not be enough.
    - differ: the interval excludes 0 and is not within ±margin.
    - cannot tell: everything else. That is an interval that contains 0 and reaches beyond the margin (more seeds
      would help), a single seed (there is no interval), no shared seed, and values without any spread outside
      the margin: a test set counts in steps of whole images, so equal differences are no measure of the spread.
    """
    if difference is None or difference.low is None or difference.high is None:
        return Verdict.CANNOT_TELL
    if difference.low >= -MARGIN_POINTS and difference.high <= MARGIN_POINTS:
        return Verdict.AGREE
    if without_spread(difference) or difference.low <= 0 <= difference.high:
        return Verdict.CANNOT_TELL
    return Verdict.DIFFER


def without_spread(difference: Estimate) -> bool:
    """Whether the values were equal, up to the rounding of a subtraction: then their spread is not known."""
    return difference.half_width is not None and 2 * difference.half_width <= 1e-9 * MARGIN_POINTS


def p_value(difference: Estimate) -> float:
    """Two-sided p of Student's t-test that the mean is 0; 1 where nothing is known of the spread.

    Below 5 % exactly where the interval excludes 0.
    """
    if difference.half_width is None or without_spread(difference):
        return 1.0
    from scipy import special

    freedom = difference.n - 1
    error = difference.half_width / _factor(freedom)
    return float(2 * special.stdtr(freedom, -abs(difference.mean) / error))


def _factor(freedom: int) -> float:
    """Student's: half the width of an interval in units of the mean's standard error."""
    from scipy import special  # not scipy.stats, which takes seconds to import, and only where something is estimated

    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979), in their order.

    To call those differences real whose corrected p is below 5 % is to call any wrongly in at most 5 % of tables.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Judgement:
    """A difference, judged on its own and as one of many."""

    difference: Estimate | None  # None if there are no shared seeds
    verdict: Verdict  # of the difference on its own
    corrected: float  # its p after Holm's correction over the family; 1 without an interval
    family: int  # comparisons with an interval, for which it is corrected
    broken: int = 0  # seeds of which a run is broken

    @property
    def survives(self) -> bool:
        """Whether the difference is still not 0, however small, when it is counted how many comparisons were made."""
        return self.corrected < 1 - CONFIDENCE

    @property
    def stands(self) -> bool:
        return self.verdict is Verdict.DIFFER and self.survives


def judge(differences: Mapping[KeyT, Estimate | None]) -> dict[KeyT, Judgement]:
    """Judge a family of comparisons, such as those of one table; those without an interval do not count as one."""
    made = {key: p_value(d) for key, d in differences.items() if d is not None and d.half_width is not None}
    corrected = dict(zip(made, holm(list(made.values())), strict=True))
    return {key: Judgement(d, verdict(d), corrected.get(key, 1.0), len(made)) for key, d in differences.items()}
