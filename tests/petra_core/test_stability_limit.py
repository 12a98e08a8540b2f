"""Test that the engine's stability border under staleness is that of theory, on a quadratic where it is exact.

One weight w, the loss w^2 / 2, plain gradient descent, an update for each micro-batch: a stage whose gradients are tau
updates old does w <- w - rate w', where w' is the weight of tau updates before. That recursion is stable as long as

    rate < 2 sin(pi / (2 (2 tau + 1)))

which is 2 without staleness, and about pi / (2 tau) with much of it. With the loss h w^2 / 2 the rates are 1 / h times
as large.
"""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, methods
from petra_core.methods import Method

PERIODS = 8  # of the oscillation at the border, after which growth and decay can be distinguished


def largest(tau: int) -> float:
    """Return the rate below which gradient descent on w^2 / 2 is stable, with gradients that are tau updates old."""
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))


def are_stable(rates: Sequence[float], tau: int, method: Method) -> tuple[bool, ...]:
    """Return for each learning rate whether the weight decays when the engine trains two stages.

    Only the lower stage has weights. All rates are tried in one run, on one weight each: a weight only sees the product
    of rate and curvature.

    Args:
        rates: The learning rates.
        tau: Staleness of the lower stage in micro-batches, which are updates.
        method: Any pipelined method.

    """
    linear = nn.Linear(1, len(rates), bias=False, dtype=torch.float64)
    weights = nn.init.ones_(linear.weight)
    curvatures = torch.tensor(rates, dtype=torch.float64) / max(rates)

    def quadratic(output: Tensor, _: Tensor) -> Tensor:
        return (curvatures * output.square() / 2).sum()

    pipeline = Pipeline(
        [BufferedStage(linear), HeadStage(nn.Identity(), quadratic)],
        method,
        staleness=(tau, 0),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=max(rates)),
    )
    inputs, target = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    period = 2 * (2 * tau + 1)
    sizes = []
    for _ in range(PERIODS * period):
        pipeline.step(inputs, target)
        sizes.append(weights.detach().abs().flatten().clone())
    middle = PERIODS // 2 * period
    last, before = (torch.stack(part).amax(0) for part in (sizes[-period:], sizes[middle - period : middle]))
    return tuple((last < before).tolist())


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
