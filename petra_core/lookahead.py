"""Weights predicted some updates ahead, from what the optimizer remembers of its last steps.

`petra_core.delay` has the two forms. Both take learning rates as they are now and leave weight decay out, which in the
few updates of a delay moves weights by less than the rounding of such a guess.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from petra_core.delay import ForwardWeights

__all__ = ["check_predictable", "predicted"]


def check_predictable(optimizer: Optimizer) -> None:
    """Raise ValueError if the steps of this optimizer cannot be predicted: not SGD with momentum, not Adam or AdamW."""
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    without_momentum = is_sgd and not all(group["momentum"] for group in optimizer.param_groups)
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam) or without_momentum:  # AdamW is a kind of Adam
        raise ValueError(
            f"forward weights are predicted along the momentum of SGD, Adam or AdamW, got {type(optimizer).__name__}"
            f"{' without momentum' if without_momentum else ''}"
        )


@torch.no_grad()
def predicted(
    optimizer: Optimizer, weights: Mapping[str, Tensor], updates: int, form: ForwardWeights, rate: float = 1.0
) -> dict[str, Tensor] | None:
    """The weights after so many more updates, as new tensors that are leaves of graphs.

    Args:
        optimizer: of these weights, SGD, Adam or AdamW.
        weights: parameters by name.
        updates: s, how far ahead.
        form: the rule.
        rate: factor of the learning rate in those updates.

    Returns:
        None if the prediction is the weights themselves: s = 0, or no update has been made yet.

    """
    motions = {
        parameter: motion
        for group in optimizer.param_groups
        for parameter in group["params"]
        if updates and (motion := _motion(optimizer.state.get(parameter, {}), group, updates, form)) is not None
    }
    if not any(weight in motions for weight in weights.values()):
        return None
    return {
        name: (weight.data - rate * motions[weight] if weight in motions else weight.data.clone()).requires_grad_()
        for name, weight in weights.items()
    }


def _motion(state: Mapping[str, Any], group: Mapping[str, Any], steps: int, form: ForwardWeights) -> Tensor | None:
    """By how much a weight will have gone down; None if the optimizer remembers nothing of it."""
    if "exp_avg" in state:
        return _adams(state, group, steps, form)
    momentum = state.get("momentum_buffer")
    if momentum is None:
        return None
    motion: Tensor = group["lr"] * _length(group, steps, form) * momentum
    return motion


def _length(group: Mapping[str, Any], steps: int, form: ForwardWeights) -> float:
    """Sum of the steps to come, in units of the momentum buffer: s, or mu + ... + mu^s.

    Under Nesterov's form, in which torch's SGD holds the weights already one step ahead, each of the latter is once
    more mu: without a gradient its step is mu times the buffer.
    """
    if form is ForwardWeights.PREDICTED_LINEAR:
        return steps
    mu: float = group["momentum"]
    return sum(mu ** (step + int(group["nesterov"])) for step in range(1, steps + 1))


def _adams(state: Mapping[str, Any], group: Mapping[str, Any], steps: int, form: ForwardWeights) -> Tensor:
    beta1, beta2 = group["betas"]
    done, m, v = float(state["step"]), state["exp_avg"], state.get("max_exp_avg_sq", state["exp_avg_sq"])  # AMSGrad's

    def step(shrunk: float, number: float) -> Tensor:
        size = (v / (1 - beta2**number)).sqrt_().add_(group["eps"])
        taken: Tensor = (group["lr"] * shrunk / (1 - beta1**number)) * m / size
        return taken

    if form is ForwardWeights.PREDICTED_LINEAR:
        return steps * step(1.0, done)
    motion = step(beta1, done + 1)
    for ahead in range(2, steps + 1):
        motion += step(beta1**ahead, done + ahead)
    return motion
