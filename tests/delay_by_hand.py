"""Compute the rules for delay by hand, and list settings of all rules, with which the engine is compared."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from petra_core import delay, methods
from petra_core.delay import CORRECTIONS, PredictedWeights
from petra_core.delay.corrections import Correction
from petra_core.methods import Method
from petra_core.update_rule import UpdateRule
from tests.reference import Delay, Named, Sgd

TOLERANCE = 1e-12
RATE, MOMENTUM, DECAY = 0.03, 0.8, 0.01
Rules = list[UpdateRule]
PREDICTED, LINEAR = PredictedWeights(), PredictedWeights(linear=True)


class ByHand(Delay):
    """An independent implementation of all rules, from their equations and on whole dictionaries."""

    def __init__(self, *, nesterov: bool, delay: Sequence[UpdateRule] = ()) -> None:
        self.nesterov = nesterov
        self.linear = next((rule.linear for rule in delay if isinstance(rule, PredictedWeights)), None)
        self.constants = {rule.name: rule.value for rule in delay if isinstance(rule, Correction)}

    def ahead(self, theta: Named, velocities: Named, state: dict[str, Any], updates: int) -> Named:
        if self.linear is None or not velocities:
            return theta
        moving, velocity = dict(theta), dict(velocities)
        for _ in range(updates):
            if not self.linear:  # a step of the optimizer with a gradient of zero
                velocity = {name: MOMENTUM * v for name, v in velocity.items()}
            step = MOMENTUM if not self.linear and self.nesterov else 1.0
            moving = {name: w - state.get("factor", 1.0) * RATE * step * velocity[name] for name, w in moving.items()}
        return moving

    def behind(self, theta: Named, state: dict[str, Any], delay: int) -> Named:
        if "average" not in self.constants or not delay or "delta" not in state:
            return theta
        return {name: theta[name] - delay * state["delta"][name] for name in theta}

    def correct(self, gradient: Named, theta: Named, used: Named, state: dict[str, Any]) -> Named:
        gap = {name: theta[name] - used[name] for name in theta}
        if "compensation" in self.constants:
            strength = self.constants["compensation"]
            return {name: g + strength * g**2 * gap[name] for name, g in gradient.items()}
        if "gap_aware" in self.constants and "r" in state:
            corrected = {}
            for name, g in gradient.items():
                usual = RATE * ((state["r"][name] / (1 - 0.999 ** state["updates"])).sqrt() + 1e-8)
                decayed = decay_of(theta[name]) * theta[name]
                corrected[name] = (g + decayed) / (1 + gap[name].abs() / usual) - decayed
            return corrected
        return gradient

    def update(
        self, sgd: Sgd, tick: int, theta: Named, mean: Named, velocities: Named, state: dict[str, Any], delay: float
    ) -> tuple[Named, Named]:
        before = state.get("updates", 0)
        state["updates"] = before + 1
        if "rate" in self.constants:
            factor = state["factor"] = max(delay, 1) ** -(1 - min(before / self.constants["rate"], 1))
            sgd = dataclasses.replace(sgd, learning_rate=lambda tick: factor * RATE)
        new, velocity = sgd.update(tick, theta, mean, velocities)
        if "spike" in self.constants and delay:
            length = delay + self.nesterov
            a, b = MOMENTUM**length, (1 - MOMENTUM**length) / (1 - MOMENTUM)
            for name, w in theta.items():
                new[name] = w - RATE * (a * velocity[name] + b * (mean[name] + decay_of(w) * w))
        if "gap_aware" in self.constants:
            state["r"] = {n: 0.999 * state["r"][n] if before else 0 * v for n, v in velocity.items()}
            state["r"] = {n: r + 0.001 * velocity[n] ** 2 for n, r in state["r"].items()}
        if "average" in self.constants:
            keep = self.constants["average"] ** (1 / delay) if delay else 0.0
            state["delta"] = {
                n: (keep * state["delta"][n] if before else 0.0) + (1 - keep) * (new[n] - theta[n]) for n in theta
            }
        return new, velocity


def decay_of(weight: Tensor) -> float:
    return DECAY if weight.dim() > 1 else 0.0


class Drift(UpdateRule):
    """A rule of a user: forwards extrapolate the mean change of the weights, and the gap damps late gradients."""

    parameter_buffers = 1

    def forward_weights(self, weights: Mapping[str, Tensor], updates: int, rate: float) -> dict[str, Tensor] | None:
        if not self.buffers:
            return None
        return {name: (w + updates * self.buffers[w]).requires_grad_() for name, w in weights.items()}

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        return gradient / (1 + 20 * (parameter - forward_weight).abs())

    def step(self, delay: float) -> None:
        before = [parameter.clone() for parameter in self.parameters]
        super().step(delay)
        for parameter, old in zip(self.parameters, before, strict=True):
            mean = self.buffers.get(parameter, torch.zeros_like(parameter))
            self.buffers[parameter] = 0.5 * mean + 0.5 * (parameter - old)
            parameter.add_(self.buffers[parameter], alpha=0.1 * delay)


class DriftByHand(Delay):
    """The rule `Drift` on whole dictionaries."""

    def ahead(self, theta: Named, velocities: Named, state: dict[str, Any], updates: int) -> Named:
        return {name: w + updates * state["mean"][name] if "mean" in state else w for name, w in theta.items()}

    def correct(self, gradient: Named, theta: Named, used: Named, state: dict[str, Any]) -> Named:
        return {n: g / (1 + 20 * (theta[n] - used[n]).abs()) for n, g in gradient.items()}

    def update(
        self, sgd: Sgd, tick: int, theta: Named, mean: Named, velocities: Named, state: dict[str, Any], delay: float
    ) -> tuple[Named, Named]:
        new, velocity = sgd.update(tick, theta, mean, velocities)
        old = state.get("mean", {name: 0 * w for name, w in theta.items()})
        state["mean"] = {name: (old[name] + new[name] - theta[name]) / 2 for name in theta}
        return {name: w + 0.1 * delay * state["mean"][name] for name, w in new.items()}, velocity


#: Every rule, at an even and at an odd place, with a method that supports it. `Rate` ends within the runs below.
SETTINGS: list[tuple[Method, Rules]] = [
    (methods.PETRA, [delay.Rate(12)]),
    *((methods.PETRA, [correction()]) for correction in CORRECTIONS.values() if correction is not delay.Rate),
    *((method, [PREDICTED]) for method in methods.PAPER if method.pipelined),
    (methods.PETRA, [LINEAR]),
    (methods.APPROXIMATE_INPUTS, [delay.Spike()]),
    (methods.DSP, [PREDICTED, delay.GapAware()]),
    (methods.DELAYED_GRADIENTS, [LINEAR, delay.Rate(12)]),
    (methods.DELAYED_GRADIENTS, [delay.Compensation()]),
    (methods.DSP, [delay.Average()]),
    (methods.PETRA, [delay.Rate(12), delay.Compensation()]),
    (methods.PETRA, [PREDICTED, delay.Compensation()]),
    *((method, [Drift()]) for method in (methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS)),
]
