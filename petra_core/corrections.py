"""Implement the delay corrections that `petra_core.delay` defines.

A `Corrector` wraps a stage's optimizer. It may transform each gradient, supply weights for the backward pass, and
perform the update. The stage counts the delay; it is never computed from a formula. While the pipeline fills the delay
is 0, and every rule is then bitwise equal to the plain optimizer.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from petra_core.delay import AVERAGE, COMPENSATION, GAP_AWARE, RATE, SPIKE, Correction

__all__ = ["Corrector", "corrector"]


class Corrector:
    """The base class of all rules, which does not correct anything.

    Args:
        correction: The rule and its constant.
        optimizer: The optimizer of the stage.

    Attributes:
        rate: Factor of the learning rate in the last update.
        buffers: Buffers of the rule by parameter, of the parameter's shape; empty for most rules.

    """

    def __init__(self, correction: Correction, optimizer: Optimizer) -> None:
        self.rate = 1.0
        self.buffers: dict[Tensor, Tensor] = {}
        self._constant = correction.value
        self._optimizer = optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._updates = 0

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        """Return the corrected gradient of one late micro-batch.

        It is not called for a micro-batch without delay.

        Args:
            parameter: The parameter with its current value.
            gradient: Gradient of the parameter.
            forward_weight: Value of the parameter in the forward of the micro-batch.

        """
        return gradient

    def backward_weights(self, weights: Mapping[str, Tensor], delay: int) -> dict[str, Tensor] | None:
        """Return the weights for the backward of a micro-batch that is `delay` updates late.

        None means the current weights.
        """
        return None

    @torch.no_grad()
    def update(self, delay: float) -> None:
        """Update the weights.

        Args:
            delay: Delay tau, mean over the micro-batches of the update.

        """
        self._step(delay)
        self._updates += 1

    def _step(self, delay: float) -> None:
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        buffers = [self.buffers.get(parameter) for parameter in self._parameters]
        return {"rate": self.rate, "updates": self._updates, "buffers": buffers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self.rate, self._updates = state["rate"], state["updates"]
        self.buffers = {
            parameter: buffer.to(parameter.device)
            for parameter, buffer in zip(self._parameters, state["buffers"], strict=True)
            if buffer is not None
        }


class _Rate(Corrector):
    """eta / max(tau, 1)^p, p = 1 - min(t/T, 1), where t is the number of updates so far."""

    def _step(self, delay: float) -> None:
        power = 1 - min(self._updates / self._constant, 1.0)
        self.rate = max(delay, 1.0) ** -power
        rates = [group["lr"] for group in self._optimizer.param_groups]
        try:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * self.rate
            self._optimizer.step()
        finally:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


class _Average(Corrector):
    """u = w - tau delta, delta <- gamma delta + (1 - gamma) (w_new - w_old), gamma = D^(1/tau)."""

    def backward_weights(self, weights: Mapping[str, Tensor], delay: int) -> dict[str, Tensor] | None:
        if not delay:
            return None
        return {
            # A weight without a buffer is not in the optimizer, so it is never updated.
            name: (
                weight.data - delay * self.buffers[weight] if weight in self.buffers else weight.data
            ).requires_grad_()
            for name, weight in weights.items()
        }

    def _step(self, delay: float) -> None:
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer.step()
        keep = self._constant ** (1 / delay) if delay else 0.0
        for parameter, old in zip(self._parameters, before, strict=True):
            change = (parameter.detach() - old).mul_(1 - keep)
            self.buffers[parameter] = self.buffers[parameter].mul_(keep).add_(change) if self._updates else change


class _GapAware(Corrector):
    """(g + weight decay) / F, F = 1 + |w - w_forward| / C, C = eta_max (sqrt(r / (1 - 0.999^t)) + 1e-8).

    r <- 0.999 r + 0.001 m^2 at each of the t updates. eta_max is the initial learning rate of the parameter's group.
    """

    def __init__(self, correction: Correction, optimizer: Optimizer) -> None:
        super().__init__(correction, optimizer)
        groups = list(enumerate(optimizer.param_groups))
        # Indices, because the optimizer replaces the groups when it loads a state.
        self._group = {parameter: number for number, group in groups for parameter in group["params"]}
        self._largest = [float(group["lr"]) for _, group in groups]
        if min(self._largest) <= 0:
            raise ValueError(
                f"Gap-Aware measures gaps in units of the optimizer's initial learning rate, which must be above 0, "
                f"got {min(self._largest)}; create the optimizer with the largest rate, and lower it for warm-up "
                f"afterwards"
            )

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        if parameter not in self.buffers:
            return gradient
        number = self._group[parameter]
        usual = (self.buffers[parameter] / (1 - 0.999**self._updates)).sqrt_().add_(1e-8).mul_(self._largest[number])
        factor = (parameter.detach() - forward_weight.detach()).abs_().div_(usual).add_(1)
        decay = self._optimizer.param_groups[number]["weight_decay"]
        if not decay:
            return gradient / factor
        # The optimizer adds decay * w, so this subtracts the part that the division by the factor would remove.
        decayed: Tensor = decay * parameter.detach()
        return (gradient + decayed).div_(factor).sub_(decayed)

    def _step(self, delay: float) -> None:
        self._optimizer.step()
        for parameter in self._parameters:
            momentum = self._optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                usual = self.buffers.setdefault(parameter, torch.zeros_like(momentum))
                usual.mul_(0.999).addcmul_(momentum, momentum, value=0.001)


class _Spike(Corrector):
    """m <- mu m + g and w <- w - eta (a m + b g), a = mu^D, b = (1 - mu^D) / (1 - mu).

    D is the delay. Nesterov momentum corresponds to D = 1, so with it D is the delay plus 1.
    """

    def _step(self, delay: float) -> None:
        if not delay:
            self._optimizer.step()
            return
        for group in self._optimizer.param_groups:
            mu, length = group["momentum"], delay + int(group["nesterov"])
            a = mu**length
            b = (1 - a) / (1 - mu)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self._optimizer.state[parameter]
                momentum = state.get("momentum_buffer")
                state["momentum_buffer"] = momentum = gradient if momentum is None else momentum.mul_(mu).add_(gradient)
                parameter.add_(a * momentum + b * gradient, alpha=-group["lr"])


class _Compensation(Corrector):
    """g + lambda g g (w - w_forward)."""

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        gap = parameter.detach() - forward_weight.detach()
        return gradient + self._constant * gradient * gradient * gap


_RULES: dict[str, type[Corrector]] = {
    RATE.name: _Rate,
    AVERAGE.name: _Average,
    GAP_AWARE.name: _GapAware,
    SPIKE.name: _Spike,
    COMPENSATION.name: _Compensation,
}


def corrector(correction: Correction, optimizer: Optimizer) -> Corrector:
    """Return the corrector of a rule for the optimizer of one stage.

    Raises:
        ValueError: If the rule requires SGD with momentum, without dampening and maximize, and the optimizer differs.

    """
    momenta = [group.get("momentum", 0) for group in optimizer.param_groups]
    if correction.momentum and not (isinstance(optimizer, torch.optim.SGD) and all(momenta)):
        raise ValueError(
            f"the correction {correction.name!r} is a rule for SGD with momentum, got {type(optimizer).__name__}"
            f"{' without momentum' if isinstance(optimizer, torch.optim.SGD) else ''}; choose 'rate', 'average' or "
            f"'compensation'"
        )
    for setting in ("dampening", "maximize") if correction.momentum else ():
        if values := [group[setting] for group in optimizer.param_groups if group[setting]]:
            raise ValueError(
                f"the correction {correction.name!r} is a rule for SGD without dampening and maximize, got "
                f"{setting}={values[0]}; leave it out"
            )
    return _RULES[correction.name](correction, optimizer)
