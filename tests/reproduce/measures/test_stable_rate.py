"""Test that the engine's stability border under staleness is that of theory, on a quadratic where it is exact."""

import math

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.measures.stable_rate import are_stable, largest


@pytest.mark.parametrize("tau", [0, 1, 3])
@pytest.mark.parametrize(
    "method", [methods.PETRA, methods.DELAYED_GRADIENTS, methods.DSP], ids=lambda method: method.name
)
def test_the_border_is_within_one_percent_of_theory(tau: int, method: Method) -> None:
    rate = largest(tau, curvature=3.0)
    assert are_stable([0.99 * rate, 1.01 * rate, 0.5 * rate], tau, 3.0, method) == (True, False, True)


def test_theory_is_that_of_plain_gradient_descent_without_staleness_and_falls_with_it() -> None:
    assert largest(0, 4.0) == pytest.approx(0.5)
    assert largest(1) == pytest.approx(1.0)
    assert largest(500) == pytest.approx(math.pi / (2 * 500.5))
