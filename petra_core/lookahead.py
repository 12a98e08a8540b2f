"""Predict weights some updates ahead from the state of the optimizer.

`petra_core.delay` defines the two rules. Both assume the current learning rate and ignore weight decay, whose effect
over the few updates of a delay is smaller than the error of the prediction.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from petra_core.delay import ForwardWeights

__all__ = ["check_predictable", "predicted"]


def check_predictable(optimizer: Optimizer) -> None:
    """Raise ValueError unless the optimizer is SGD with momentum, Adam or AdamW, whose steps can be predicted."""
    is_sgd = isinstance(optimizer, torch.optim.SGD)
    without_momentum = is_sgd and not all(group["momentum"] for group in optimizer.param_groups)
    if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam) or without_momentum:  # AdamW is a subclass of Adam
        raise ValueError(
            f"forward weights are predicted along the momentum of SGD, Adam or AdamW, got {type(optimizer).__name__}"
            f"{' without momentum' if without_momentum else ''}"
        )


@torch.no_grad()
def predicted(
    optimizer: Optimizer, weights: Mapping[str, Tensor], updates: int, form: ForwardWeights, rate: float = 1.0
) -> dict[str, Tensor] | None:
    """Return the predicted weights after some more updates.

    Args:
        optimizer: The optimizer of these weights: SGD, Adam or AdamW.
        weights: The parameters by name.
        updates: Number of updates s to look ahead.
        form: The rule of the prediction.
        rate: Factor of the learning rate in these updates.

    Returns:
        New leaf tensors that require gradients, by name. None if the prediction equals the current weights, because
        s = 0 or no update has been made yet.

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
    """Return the predicted decrease of a weight; None if the optimizer has no state for it."""
    if "exp_avg" in state:
        return _adams(state, group, steps, form)
    momentum = state.get("momentum_buffer")
    if momentum is None:
        return None
    motion: Tensor = group["lr"] * _length(group, steps, form) * momentum
    return motion


def _length(group: Mapping[str, Any], steps: int, form: ForwardWeights) -> float:
    """Return the sum of the next steps in units of the momentum buffer: s, or mu + ... + mu^s.

    With Nesterov momentum torch's SGD keeps the weights one step ahead. Without a gradient its step is mu times the
    buffer, so each term of the second sum has one more factor mu.
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
