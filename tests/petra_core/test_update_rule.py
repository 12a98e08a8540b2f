"""Test users' update rules: the engine calls their hooks, saves their state and accounts for their bytes."""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, check, methods, models
from petra_core.delay import Compensation
from petra_core.methods import Method
from petra_core.optimizers import sgd
from petra_core.update_rule import UpdateRule, check_rules, describe
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.petra_core.test_delay import assert_follows
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise
from tests.reference import RULES, Delay, Named, Sgd


class Drift(UpdateRule):
    """A rule that extrapolates the mean change of the weights in forwards and damps late gradients by the gap."""

    parameter_buffers = 1

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __str__(self) -> str:
        return f"drift {self.strength:g}"

    def forward_weights(self, weights: Mapping[str, Tensor], updates: int, rate: float) -> dict[str, Tensor] | None:
        if not self.buffers:
            return None
        return {name: (w + updates * self.buffers[w]).requires_grad_() for name, w in weights.items()}

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        return gradient / (1 + self.strength * (parameter - forward_weight).abs())

    def step(self, delay: float) -> None:
        before = [parameter.clone() for parameter in self.parameters]
        super().step(delay)
        for parameter, old in zip(self.parameters, before, strict=True):
            mean = self.buffers.get(parameter, torch.zeros_like(parameter))
            self.buffers[parameter] = 0.5 * mean + 0.5 * (parameter - old)
            parameter.add_(self.buffers[parameter], alpha=0.1 * delay)

    def state_dict(self) -> dict[str, Any]:
        return {"means": [self.buffers.get(parameter) for parameter in self.parameters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        means = zip(self.parameters, state["means"], strict=True)
        self.buffers = {parameter: mean for parameter, mean in means if mean is not None}


@dataclasses.dataclass
class DriftByHand(Delay):
    """The rule `Drift` on whole dictionaries."""

    strength: float

    def ahead(self, theta: Named, velocities: Named, state: dict[str, Any], updates: int) -> Named:
        return {name: w + updates * state["mean"][name] if "mean" in state else w for name, w in theta.items()}

    def correct(self, gradient: Named, theta: Named, used: Named, state: dict[str, Any]) -> Named:
        return {n: g / (1 + self.strength * (theta[n] - used[n]).abs()) for n, g in gradient.items()}

    def update(
        self, sgd: Sgd, tick: int, theta: Named, mean: Named, velocities: Named, state: dict[str, Any], delay: float
    ) -> tuple[Named, Named]:
        new, velocity = sgd.update(tick, theta, mean, velocities)
        old = state.get("mean", {name: 0 * w for name, w in theta.items()})
        state["mean"] = {name: (old[name] + new[name] - theta[name]) / 2 for name in theta}
        return {name: w + 0.1 * delay * state["mean"][name] for name, w in new.items()}, velocity


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS], ids=str)
@pytest.mark.parametrize(("pattern", "k"), [("b r r h", 1), ("br rr rh", 3)])
def test_user_rule_matches_its_equation(pattern: str, k: int, method: Method) -> None:
    """A user's rule trains as its equation in the reference implementation after every step."""
    assert_follows(pattern, method, k, RULES[method.name], DriftByHand(20.0), delay=[Drift(20.0)])


@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS], ids=str)
def test_user_rule_resumes_bitwise(method: Method, tmp_path: Path) -> None:
    net = toys.network(5, dropout=0.2)

    def fresh() -> Pipeline:
        return Pipeline(copy.deepcopy(net), method, accumulation=2, optimizer=toys.sgd, seed=7, delay=[Drift(20.0)])

    assert_resumes_bitwise(fresh, toys.batches(16), 9, tmp_path)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_user_rule_bytes_match_prediction(method: Method) -> None:
    batch = torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    assert_bytes_are_as_predicted(
        models.chain(4, num_classes=10, channels=4), method, batch, 2, sgd(0.01), delay=[Drift(20.0)]
    )


def test_rule_may_have_another_base_class() -> None:
    """The other base class gets the arguments of the class statement."""

    class Registered:
        topic: str

        def __init_subclass__(cls, topic: str) -> None:
            cls.topic = topic

    class Mine(UpdateRule, Registered, topic="delay"):
        pass

    assert (Mine.name, Mine.topic) == ("Mine", "delay")


def test_check_rules_sorts_by_hook() -> None:
    class Ahead(UpdateRule):
        def forward_weights(self, weights: Any, updates: int, rate: float) -> None:
            return None

    assert describe(check_rules([Compensation(), Ahead()], methods.PETRA)) == "Ahead, compensation 0.04"


def test_check_rules_rejects_equal_names() -> None:
    class One(UpdateRule):
        def step(self, delay: float) -> None: ...

    class Two(UpdateRule):
        name = "One"

        def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
            return gradient

    with pytest.raises(ValueError, match=r"two delay rules are called 'One', .* rename one"):
        check_rules([One(), Two()], methods.PETRA)


def test_deepcopy_of_pipeline_copies_rules() -> None:
    """A deep copy of a pipeline with a rule trains bitwise as the original."""
    p = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, seed=7, delay=[Drift(20.0)])
    data = toys.batches(12)
    toys.train(p, data[:6], drain=False)
    copied = copy.deepcopy(p)
    assert toys.train(copied, data[6:]) == toys.train(p, data[6:])
    assert_bitwise_equal(toys.weights(copied), toys.weights(p))


def test_check_accepts_rules() -> None:
    """`check` accepts delay rules and reports a rule that has no effect."""
    stages, (x, y) = toys.network(4), toys.batches(1)[0]
    assert check(stages, x, y, optimizer=toys.sgd, delay=[Drift(20.0)]).ok
    report = check(stages, x, y, method=methods.BACKPROPAGATION, optimizer=toys.sgd, delay=[Drift(20.0)])
    assert "the delay rule 'Drift' would have no effect" in str(report)
