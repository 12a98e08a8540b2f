"""What a stage does about its delay at each backward and each update, by the rules of `petra_core.delay`.

A `Corrector` stands between a stage and its optimizer. It is told of every gradient with the weights of its forward, is
asked for the weights of a backward, and makes the optimizer's step. The delay is always counted by the stage, never
taken from a formula: while the pipeline fills it is 0, and there every rule is the plain optimizer, bit for bit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from petra_core.delay import AVERAGE, COMPENSATION, GAP_AWARE, RATE, SPIKE, Correction

__all__ = ["Corrector", "corrector"]


class Corrector:
    """The base of all rules, which corrects nothing.

    Args:
        correction: the rule and its constant.
        optimizer: of the stage.

    Attributes:
        rate: factor of the learning rate in the last update.
        buffers: what the rule keeps of each parameter, of its shape; empty for most rules.

    """

    def __init__(self, correction: Correction, optimizer: Optimizer) -> None:
        self.rate = 1.0
        self.buffers: dict[Tensor, Tensor] = {}
        self._constant = correction.value
        self._optimizer = optimizer
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._updates = 0

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        """The gradient of one late micro-batch, corrected; `forward_weight` is what the parameter was at its forward.

        It is not called of micro-batches between whose forward and backward nothing has changed.
        """
        return gradient

    def backward_weights(self, weights: Mapping[str, Tensor], delay: int) -> dict[str, Tensor] | None:
        """The weights for the backward of a micro-batch that is `delay` updates late; None: the current ones."""
        return None

    @torch.no_grad()
    def update(self, delay: float) -> None:
        """Make the optimizer's step.

        Args:
            delay: tau, mean over the micro-batches of the update.

        """
        self._step(delay)
        self._updates += 1

    def _step(self, delay: float) -> None:
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """What must survive a stop."""
        buffers = [self.buffers.get(parameter) for parameter in self._parameters]
        return {"rate": self.rate, "updates": self._updates, "buffers": buffers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.rate, self._updates = state["rate"], state["updates"]
        self.buffers = {
            parameter: buffer.to(parameter.device)
            for parameter, buffer in zip(self._parameters, state["buffers"], strict=True)
            if buffer is not None
        }


class _Rate(Corrector):
    """eta / tau^p, p = 1 - min(t/T, 1), with t the updates so far; a delay below one update leaves eta."""

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
            # A weight without a buffer is one that the optimizer was not given, which never moves.
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
    """g / F and the weight decay too, F = 1 + |w - w_forward| / C, C = eta_max (sqrt(r / (1 - 0.999^t)) + 1e-8).

    r <- 0.999 r + 0.001 m^2 at each of t updates, and eta_max is the rate with which the parameter's group was made.
    """

    def __init__(self, correction: Correction, optimizer: Optimizer) -> None:
        super().__init__(correction, optimizer)
        groups = list(enumerate(optimizer.param_groups))
        # Their numbers: the groups themselves are others once the optimizer has loaded a state.
        self._group = {parameter: number for number, group in groups for parameter in group["params"]}
        self._largest = [float(group["lr"]) for _, group in groups]
        if min(self._largest) <= 0:
            raise ValueError(
                f"Gap-Aware measures gaps by the learning rate with which the optimizer was made, which must be above "
                f"0, got {min(self._largest)}; set a lower rate for warm-up afterwards"
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
        # The optimizer will add decay * w, of which this takes off what the factor would have.
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

    Nesterov's form is that of D = 1; where the optimizer has it already, D is one more than the delay.
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
    """The rule at work for one stage.

    Raises:
        ValueError: it is a rule of SGD with momentum, and the optimizer is another, or has dampening or maximizes.

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
                f"the correction {correction.name!r} is a rule for SGD that minimizes, without dampening; got "
                f"{setting}={values[0]}: leave it out"
            )
    return _RULES[correction.name](correction, optimizer)
