"""Quantify growth by two numbers: the exponent of a power law, and how well a straight line fits.

A curve that looks steep or flat proves nothing, since its axes can be chosen. Two numbers can be judged. The first is
the slope in logarithmic axes, which is the exponent of y = c x^slope, with its 95 % interval by Student's t. The second
is the share of the variance that a straight line y = a + b x explains. It is needed when there is a fixed cost a, such
as that of stem and head: the exponent is then below 1 although every block costs the same.

Both are least-squares fits over all points. Every round of a measurement is a point.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from reproduce.presentation.content import signless
from reproduce.presentation.statistics import CONFIDENCE

__all__ = ["Growth", "growth"]


@dataclass(frozen=True)
class Growth:
    """Growth of y with x.

    Attributes:
        exponent: Exponent of the power law: 0 for no growth, 1 for proportional growth.
        half_width: Half of the exponent's 95 % interval; None for two points, which every line meets.
        straight: Share of the variance of y that a straight line explains; 1 if y does not vary.

    """

    exponent: float
    half_width: float | None
    straight: float

    def words(self, digits: int = 3) -> str:
        """Format the exponent and half of its interval."""
        interval = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return signless(f"{self.exponent:.{digits}f}") + interval


def growth(x: Sequence[float], y: Sequence[float]) -> Growth:
    """Fit a power law and a straight line.

    Raises:
        ValueError: There are fewer than two different x, or a number is not positive and finite.

    """
    if len(set(x)) < 2:
        raise ValueError(f"a fit of growth needs at least two different x, got {sorted(set(x))}")
    if not (np.isfinite([*x, *y]).all() and min(*x, *y) > 0):
        raise ValueError(f"a fit of a power law needs finite positive numbers, got {list(zip(x, y, strict=True))}")
    freedom = len(x) - 2
    if len(set(y)) == 1:  # scipy would divide by the variance, which is 0
        return Growth(0.0, 0.0 if freedom else None, 1.0)
    law, line = stats.linregress(np.log(x), np.log(y)), stats.linregress(x, y)
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * law.stderr) if freedom else None
    return Growth(float(law.slope), half_width, float(line.rvalue) ** 2)
