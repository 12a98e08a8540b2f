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
def test_engine_stability_limit_matches_theory(tau: int, method: Method) -> None:
    """The engine is stable at 99 % of the theoretical rate and unstable at 101 %."""
    rate = largest(tau)
    assert are_stable([0.99 * rate, 1.01 * rate, 0.5 * rate], tau, method) == (True, False, True)


def test_theoretical_limit_falls_with_staleness() -> None:
    """Without staleness the limit is that of gradient descent, and it falls with staleness."""
    assert largest(0) == pytest.approx(2.0)
    assert largest(1) == pytest.approx(1.0)
    assert largest(500) == pytest.approx(math.pi / (2 * 500.5))
