"""Write the error messages of wrong calls of the engine to errors.txt.

    python -m tests.petra_core.errors

A case (see `tests/messages.py`) is an expression that uses the names of this module.
"""

# ruff: noqa: F401  # errors.txt uses the imported names
import copy
import functools
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from petra_core import (
    BufferedStage,
    Clip,
    HeadStage,
    Pipeline,
    ReversibleStage,
    Stage,
    check,
    delay,
    merge,
    methods,
    models,
    prediction,
)
from petra_core.delay import PredictedWeights
from petra_core.devices.captured import CapturedSteps
from petra_core.errors import check_int, check_number
from petra_core.methods import Inputs, Method, Weights
from petra_core.optimizers import adamw, nadam, sgd
from petra_core.prediction.partition import assess, find_partition
from petra_core.prediction.simulation import Cost, Link, make_schedule, simulate
from petra_core.shares import even_partition, stage_ranges
from petra_core.staleness import one_f_one_b, per_device
from petra_core.update_rule import UpdateRule
from tests import toys
from tests.messages import message_of_expression, rewrite
from tests.own_networks import cnn
from tests.petra_core.test_user_modules import batches, head, made, network, residual
from tests.petra_core.test_user_modules import sgd as plain_sgd

FILE = Path(__file__).with_name("errors.txt")
X, Y = batches(1)[0]
IDENTITY = ReversibleStage(nn.Identity())
MINE = Method("MINE", "Mine", Inputs.STASH, Weights.STASH, pipelined=True)
PREDICTED, LINEAR = PredictedWeights(), PredictedWeights(linear=True)


def stepped(method: Method = methods.PETRA, *, x: Any = X, y: Any = Y, net: list[Stage] | None = None) -> object:
    p = made(network() if net is None else net, method)
    return [p.step(x, y) for _ in range(8)]


def with_loss(loss: Callable[[Tensor, Tensor], Any]) -> list[Stage]:
    return [*network()[:3], HeadStage(head().double(), loss)]


def between(*stages: Any) -> Pipeline:
    """Return a pipeline of these stages between a stem and a head."""
    return Pipeline([toys.stem(2), *stages, toys.head(2)], methods.PETRA)


def of_three(method: Any = methods.PETRA, **settings: Any) -> Pipeline:
    return Pipeline(toys.network(3), method, **settings)


class Looked(nn.Module):
    """A lookup with `F.embedding`, whose sparse gradient cannot be detected from the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(5, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.embedding(x, self.table, sparse=True)
        return y, y.clone()


class Views(nn.Module):
    """Two parameters, of which the second is the transpose of the first."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.eye(4).double())
        self.other = nn.Parameter(self.one.data.t())


class Growing(nn.Module):
    """A module with running statistics in a plain attribute."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.mean = torch.zeros(4).double()

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.function(x)


class WithoutRate(torch.optim.SGD):
    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, lr=lr)


def post_accumulate() -> Pipeline:
    net = network()
    next(net[1].parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    return Pipeline(net, methods.BACKPROPAGATION)


def scripted(method: Method) -> Pipeline:
    trace = functools.partial(torch.jit.trace, example_inputs=torch.ones(5, 4, dtype=torch.float64))
    return made([network()[0], ReversibleStage(trace(network()[1].function)), *network()[2:]], method)


def dead_residual() -> ReversibleStage:
    dead = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
    nn.init.zeros_(dead[1].weight)
    return ReversibleStage(dead)


def loaded(saved: Any, other: Any) -> None:
    """Load a state with another optimizer."""
    first, second = (made(network(), methods.PETRA, optimizer=optimizer) for optimizer in (saved, other))
    for x, y in batches(12):
        first.step(x, y)
    load(first, second)


def load(saved: Pipeline, other: Pipeline, change: Callable[[dict[str, Any]], object] = len) -> None:
    """Load the state of a pipeline into another one, after a change."""
    state = saved.state_dict()
    change(state)
    other.load_state_dict(state)


def after(wrong: Callable[[Pipeline], object], then: Callable[[Pipeline], object]) -> object:
    """Call `then` with a pipeline for which `wrong` has failed."""
    p = made(network(), methods.PETRA)
    try:
        wrong(p)
    except Exception:
        return then(p)
    raise AssertionError("it should have failed")


def in_flight(method: Method = methods.PETRA, steps: int = 1) -> Pipeline:
    p = made(network(), method)
    for _ in range(steps):
        p.step(X, Y)
    return p


def with_a_broken_weight() -> Pipeline:
    p = in_flight(steps=8)
    with torch.no_grad():
        next(p.stages[2].parameters()).fill_(float("nan"))
    return p


def inside(context: Any) -> object:
    with context:
        return in_flight()


def hooked(stage: Stage) -> Stage:
    stage.register_forward_hook(lambda *_: None)
    return stage


def optimizer_of_all() -> Pipeline:
    net = toys.network(3)
    return Pipeline(net, methods.PETRA, optimizer=lambda _: toys.sgd([p for stage in net for p in stage.parameters()]))


def written(method: Method, write: Callable[[Tensor], object]) -> None:
    """Train, and write a weight between two steps."""
    p = Pipeline(network(), method, optimizer=plain_sgd, accumulation=6 if method.double_buffered else 1)
    for x, y in batches(12):
        p.step(x, y)
        with torch.no_grad():
            write(next(p.stages[1].parameters()))


def double(parameter: Tensor) -> None:
    parameter.data = parameter.data * 2


def message_of(case: str) -> str:
    """Return the type and the message of the error of a case."""
    return message_of_expression(case, globals())


if __name__ == "__main__":
    rewrite(FILE, message_of)
