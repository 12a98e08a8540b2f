"""Corrections of gradients, updates and backward weights for their delay (`petra_core.delay` lists them).

While the pipeline fills the delay is 0, and every rule is then bitwise equal to the plain optimizer.
"""

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from petra_core.errors import check_number
from petra_core.update_rule import UpdateRule

if TYPE_CHECKING:  # keep this module importable without torch
    from torch import Tensor


class Correction(UpdateRule):
    """A correction with at most one constant.

    Args:
        value: The constant; None for the default.

    Attributes:
        name: Identifier in cells, checkpoints and on the command line.
        title: Name in tables and figures.
        meaning: Meaning of the constant, with its unit; empty if the correction has none.
        default: Default of the constant.
        below: Upper bound of the constant.
        needs_momentum: Whether the optimizer must be SGD with momentum.
        value: The constant; 0 if the correction has none.
        updates: Number of updates so far.

    Raises:
        ValueError: If the correction has no constant, or the value is out of range.
        TypeError: If the value is not a number.

    """

    title: ClassVar[str]
    meaning: ClassVar[str] = ""
    default: ClassVar[float] = 0.0
    below: ClassVar[float] = math.inf
    needs_momentum: ClassVar[bool] = False

    def __init__(self, value: float | None = None) -> None:
        self.value = self.default
        self.updates = 0
        if value is None:
            return
        if not self.meaning:
            raise ValueError(f"the correction {self.name!r} has no constant to set, got {value!r}; leave it out")
        self.value = check_number(self.meaning, value, below=self.below)
        if value == 0:
            raise ValueError(f"{self.meaning} must be above 0, got {value!r}")

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}" if self.meaning else self.name

    def start(self) -> None:
        """Check the optimizer.

        Raises:
            ValueError: If the rule requires SGD with momentum, without dampening and maximize, and the optimizer
                differs, or overrides its step.

        """
        if not self.needs_momentum:
            return
        import torch

        overrides = inspect.unwrap(self.optimizer.step) is not inspect.unwrap(torch.optim.SGD.step)
        groups = self.optimizer.param_groups
        if overrides or not all(group["momentum"] for group in groups):
            raise ValueError(
                f"the correction {self.name!r} needs the step of SGD with momentum, got {type(self.optimizer).__name__}"
                f"{'' if overrides else ' without momentum'}; choose 'rate', 'average' or 'compensation'"
            )
        for setting in ("dampening", "maximize"):
            if values := [group[setting] for group in groups if group[setting]]:
                raise ValueError(
                    f"the correction {self.name!r} is a rule for SGD without dampening and maximize, got "
                    f"{setting}={values[0]}; leave it out"
                )

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "updates": self.updates, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.rate, self.updates = state["rate"], state["updates"]


class Rate(Correction):
    """Learning rate eta / max(tau, 1)^p, p = 1 - min(t/T, 1), after t updates with delay tau. T is the constant."""

    name = "rate"
    title = "Rate by delay"
    meaning = "updates until the rate is released"
    default = 1000.0

    def step(self, delay: float) -> None:
        power = 1 - min(self.updates / self.value, 1.0)
        self.rate = max(delay, 1.0) ** -power
        rates = [group["lr"] for group in self.optimizer.param_groups]
        try:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * self.rate
            super().step(delay)
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self.updates += 1


class Average(Correction):
    """Backward weights w - tau delta, where delta is an average of past updates.

    delta <- gamma delta + (1 - gamma) (w_new - w_old), gamma = D^(1/tau). tau is the delay and D the constant.
    """

    name = "average"
    title = "Averaged weights"
    meaning = "decay of the average over a delay"
    default = 0.135
    below = 1.0
    parameter_buffers = 1

    def backward_weights(self, weights: "Mapping[str, Tensor]", delay: int) -> "dict[str, Tensor] | None":
        if not delay:
            return None
        # A weight without a buffer is not in the optimizer, so it is never updated.
        return {name: weight - delay * self.buffers.get(weight, 0) for name, weight in weights.items()}

    def step(self, delay: float) -> None:
        before = [parameter.detach().clone() for parameter in self.parameters]
        super().step(delay)
        keep = self.value ** (1 / delay) if delay else 0.0
        for parameter, old in zip(self.parameters, before, strict=True):
            change = (parameter.detach() - old).mul_(1 - keep)
            self.buffers[parameter] = self.buffers[parameter].mul_(keep).add_(change) if self.updates else change
        self.updates += 1


class GapAware(Correction):
    """Gradient (g + weight decay) / F, F = 1 + |w - w_forward| / C, C = eta_max (sqrt(r / (1 - 0.999^t)) + 1e-8).

    r <- 0.999 r + 0.001 m^2 in each of the t updates, where m is the momentum buffer. eta_max is the initial learning
    rate of the parameter's group.
    """

    name = "gap_aware"
    title = "Gap-Aware"
    needs_momentum = True
    parameter_buffers = 1

    def start(self) -> None:
        super().start()
        groups = self.optimizer.param_groups
        # Indices, because the optimizer replaces the groups when it loads a state.
        self._group = {parameter: number for number, group in enumerate(groups) for parameter in group["params"]}
        self._largest = [float(group["lr"]) for group in groups]
        if min(self._largest) <= 0:
            raise ValueError(
                f"Gap-Aware measures gaps in units of the optimizer's initial learning rate, which must be above 0, "
                f"got {min(self._largest)}; create the optimizer with the largest rate, and lower it for warm-up "
                f"afterwards"
            )

    def gradient(self, parameter: "Tensor", gradient: "Tensor", forward_weight: "Tensor") -> "Tensor":
        if parameter not in self.buffers:
            return gradient
        number = self._group[parameter]
        usual = (self.buffers[parameter] / (1 - 0.999**self.updates)).sqrt_().add_(1e-8).mul_(self._largest[number])
        factor = (parameter.detach() - forward_weight.detach()).abs_().div_(usual).add_(1)
        if not (decay := self.optimizer.param_groups[number]["weight_decay"]):
            return gradient / factor
        # The optimizer adds decay * w, so this subtracts the part that the division by the factor would remove.
        decayed: Tensor = decay * parameter.detach()
        return (gradient + decayed).div_(factor).sub_(decayed)

    def step(self, delay: float) -> None:
        super().step(delay)
        for parameter in self.parameters:
            if (momentum := self.optimizer.state[parameter].get("momentum_buffer")) is not None:
                if parameter not in self.buffers:
                    self.buffers[parameter] = momentum.new_zeros(momentum.shape)
                self.buffers[parameter].mul_(0.999).addcmul_(momentum, momentum, value=0.001)
        self.updates += 1


class Spike(Correction):
    """Update m <- mu m + g and w <- w - eta (a m + b g), a = mu^D, b = (1 - mu^D) / (1 - mu).

    D is the delay. Nesterov momentum corresponds to D = 1, so with it D is the delay plus 1.
    """

    name = "spike"
    title = "Spike compensation"
    needs_momentum = True

    def step(self, delay: float) -> None:
        if not delay:
            super().step(delay)
            return
        # The decorator of every `step` of torch calls the hooks of the optimizer.
        self.optimizer.profile_hook_step(lambda _optimizer: self._compensate(delay))(self.optimizer)

    def _compensate(self, delay: float) -> None:
        for group in self.optimizer.param_groups:
            mu, length = group["momentum"], delay + int(group["nesterov"])
            a = mu**length
            b = (1 - a) / (1 - mu)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self.optimizer.state[parameter]
                momentum = state.get("momentum_buffer")
                state["momentum_buffer"] = momentum = gradient if momentum is None else momentum.mul_(mu).add_(gradient)
                parameter.add_(a * momentum + b * gradient, alpha=-group["lr"])


class Compensation(Correction):
    """Gradient g + lambda g g (w - w_forward), elementwise. lambda is the constant."""

    name = "compensation"
    title = "Delay compensation"
    meaning = "lambda"
    default = 0.04

    def gradient(self, parameter: "Tensor", gradient: "Tensor", forward_weight: "Tensor") -> "Tensor":
        gap = parameter.detach() - forward_weight.detach()
        return gradient + self.value * gradient * gradient * gap


#: All corrections by name.
CORRECTIONS: dict[str, type[Correction]] = {c.name: c for c in (Rate, Average, GapAware, Spike, Compensation)}
