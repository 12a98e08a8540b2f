"""Growth in two numbers: the exponent of a power law, and how straight a line is.

A curve that looks steep or flat proves nothing, since its axes can be chosen. Two numbers can be judged: the slope in
logarithmic axes, which is the exponent of y = c x^slope, with its 95 % interval by Student's t; and the share of the
variance that a straight line y = a + b x explains. The second is needed where there is a fixed cost a, such as a stem
and a head beside the blocks: then the exponent is below 1 though every block costs the same.

Both by least squares over all points, every round of a measurement a point.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from reproduce.show.content import signless
from reproduce.show.statistics import CONFIDENCE

__all__ = ["Growth", "growth"]


@dataclass(frozen=True)
class Growth:
    """How y grows with x."""

    exponent: float  # of a power law: 0 for what does not grow, 1 for what grows in proportion
    half_width: float | None  # of the exponent's 95 % interval; None for two points, which every line meets
    straight: float  # share of the variance of y that a straight line explains; 1 where y does not vary

    def words(self, digits: int = 3) -> str:
        """The exponent and half its interval."""
        interval = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return signless(f"{self.exponent:.{digits}f}") + interval


def growth(x: Sequence[float], y: Sequence[float]) -> Growth:
    """Fit both. Raises: ValueError: fewer than two different x, or a number that is not positive and finite."""
    if len(set(x)) < 2:
        raise ValueError(f"growth is seen between two places or more, got {sorted(set(x))}")
    if not (np.isfinite([*x, *y]).all() and min(*x, *y) > 0):
        raise ValueError(f"a power law is fitted to finite positive numbers, got {list(zip(x, y, strict=True))}")
    freedom = len(x) - 2
    if len(set(y)) == 1:  # where scipy divides by the variance, 0
        return Growth(0.0, 0.0 if freedom else None, 1.0)
    law, line = stats.linregress(np.log(x), np.log(y)), stats.linregress(x, y)
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * law.stderr) if freedom else None
    return Growth(float(law.slope), half_width, float(line.rvalue) ** 2)
