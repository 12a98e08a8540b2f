"""Growth in two numbers: the exponent of a power law, and how straight a line is.

A curve that looks steep or flat proves nothing, since its axes can be chosen. Two numbers can be judged: the slope in
logarithmic axes, which is the exponent of y = c x^slope, with its 95 % interval by Student's t; and the share of the
variance that a straight line y = a + b x explains. The second is needed where there is a fixed cost a, such as a stem
and a head beside the blocks: then the exponent is below 1 though every block costs the same.

Both by least squares over all points, every round of a measurement a point.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats, which takes seconds to import

from reproduce.show.content import signless
from reproduce.show.statistics import CONFIDENCE

__all__ = ["Line", "PowerLaw", "line", "power_law"]

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class PowerLaw:
    """A power law y = c x^exponent.

    Attributes:
        exponent: 0 for what does not grow, 1 for what grows in proportion.
        half_width: of its 95 % interval; None for two points, which every line meets.

    """

    exponent: float
    half_width: float | None

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.exponent + self.half_width

    def __str__(self) -> str:
        interval = "" if self.half_width is None else f" ± {self.half_width:.3f}"
        return f"exponent {signless(f'{self.exponent:.3f}')}{interval}"


@dataclass(frozen=True)
class Line:
    """A line y = intercept + slope x, and the share of y's variance that it explains (1 where y does not vary)."""

    intercept: float
    slope: float
    explained: float


def power_law(points: Points) -> PowerLaw:
    """Fit log y = log c + exponent log x.

    Raises:
        ValueError: fewer than two different x, or a number that is not positive and finite.

    """
    if not all(math.isfinite(value) and value > 0 for point in points for value in point):
        raise ValueError(f"a power law is fitted to finite positive numbers, got {list(points)}")
    x, y = np.log(_columns(points))
    freedom = len(x) - 2
    if freedom == 0:
        return PowerLaw(float(np.polyfit(x, y, 1)[0]), None)
    (exponent, _), covariance = np.polyfit(x, y, 1, cov=True)
    factor = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return PowerLaw(float(exponent), factor * math.sqrt(max(0.0, float(covariance[0, 0]))))


def line(points: Points) -> Line:
    """Fit y = intercept + slope x. Raises: ValueError: fewer than two different x."""
    x, y = _columns(points)
    slope, intercept = np.polyfit(x, y, 1)
    variation = float(((y - y.mean()) ** 2).sum())
    left = float(((y - intercept - slope * x) ** 2).sum())
    return Line(float(intercept), float(slope), 1 - left / variation if variation else 1.0)


def _columns(points: Points) -> npt.NDArray[np.float64]:
    """All x and all y."""
    if len({x for x, _ in points}) < 2:
        raise ValueError(f"growth is seen between two places or more, got {sorted({x for x, _ in points})}")
    return np.array(points, dtype=float).T
