"""Predict weights some updates ahead from the state of the optimizer, for the forwards of a stage.

Both rules assume the current learning rate and ignore weight decay, whose effect over the few updates of a delay is
smaller than the error of the prediction.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from petra_core.update_rule import UpdateRule

if TYPE_CHECKING:  # keep this module importable without torch
    from torch import Tensor


class PredictedWeights(UpdateRule):
    """A rule that evaluates every forward with an estimate of the weights that the stage will have at its backward.

    Args:
        linear: Whether all steps until then equal the current momentum buffer. Otherwise gradients are assumed to be
            zero until then, so that the steps shrink with the momentum.

    Raises:
        ValueError: If a stage's optimizer is not SGD with momentum, Adam or AdamW, whose steps can be predicted.

    """

    def __init__(self, *, linear: bool = False) -> None:
        self.linear = linear
        self.name = "predicted_linear" if linear else "predicted"

    def __str__(self) -> str:
        return f"{self.name} forward weights"

    def start(self) -> None:
        import torch

        is_sgd = isinstance(self.optimizer, torch.optim.SGD)
        without_momentum = is_sgd and not all(group["momentum"] for group in self.optimizer.param_groups)
        supported = isinstance(self.optimizer, torch.optim.SGD | torch.optim.Adam)  # AdamW is a subclass of Adam
        if not supported or without_momentum:
            raise ValueError(
                f"forward weights are predicted along the momentum of SGD, Adam or AdamW, got "
                f"{type(self.optimizer).__name__}{' without momentum' if without_momentum else ''}"
            )

    def forward_weights(self, weights: "Mapping[str, Tensor]", updates: int, rate: float) -> "dict[str, Tensor] | None":
        """Return the predicted weights; None if they equal the current ones, because no update has been made yet."""
        motions = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                motion = self._motion(self.optimizer.state.get(parameter, {}), group, updates)
                if motion is not None:
                    motions[parameter] = motion
        if not any(weight in motions for weight in weights.values()):
            return None
        return {
            name: weight - rate * motions[weight] if weight in motions else weight.clone()
            for name, weight in weights.items()
        }

    def _motion(self, state: Mapping[str, Any], group: Mapping[str, Any], steps: int) -> "Tensor | None":
        """Return the predicted decrease of a weight; None if the optimizer has no state for it."""
        if "exp_avg" in state:
            return self._motion_of_adam(state, group, steps)
        momentum: Tensor | None = state.get("momentum_buffer")
        return None if momentum is None else momentum * (group["lr"] * self._length(group, steps))

    def _length(self, group: Mapping[str, Any], steps: int) -> float:
        """Return the sum of the next steps in units of the momentum buffer: s, or mu + ... + mu^s.

        With Nesterov momentum torch's SGD keeps the weights one step ahead. Without a gradient its step is mu times the
        buffer, so each term of the second sum has one more factor mu.
        """
        if self.linear:
            return steps
        mu: float = group["momentum"]
        return sum(mu ** (step + int(group["nesterov"])) for step in range(1, steps + 1))

    def _motion_of_adam(self, state: Mapping[str, Any], group: Mapping[str, Any], steps: int) -> "Tensor":
        beta1, beta2 = group["betas"]
        done, m, v = float(state["step"]), state["exp_avg"], state.get("max_exp_avg_sq", state["exp_avg_sq"])  # AMSGrad

        def step(shrunk: float, number: float) -> "Tensor":
            size = (v / (1 - beta2**number)).sqrt_().add_(group["eps"])
            taken: Tensor = (group["lr"] * shrunk / (1 - beta1**number)) * m / size
            return taken

        if self.linear:
            return steps * step(1.0, done)
        motion = step(beta1, done + 1)
        for ahead in range(2, steps + 1):
            motion += step(beta1**ahead, done + ahead)
        return motion


#: The predictions by name.
PREDICTIONS: dict[str, PredictedWeights] = {p.name: p for p in (PredictedWeights(), PredictedWeights(linear=True))}
