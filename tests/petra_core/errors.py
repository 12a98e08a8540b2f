"""Write the error messages of wrong calls of the engine to errors.txt.

    python -m tests.petra_core.errors

A case (see `tests/messages.py`) is an expression that uses the names of this module.
"""

# ruff: noqa: F401  # errors.txt uses the imported names
import copy
import functools
import math
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
from petra_core.devices import captured, compiled_steps
from petra_core.devices.captured import CapturedSteps
from petra_core.errors import check_int, check_number
from petra_core.messages import Channel
from petra_core.methods import Inputs, Method, Weights
from petra_core.optimizers import adamw, nadam, sgd
from petra_core.prediction.partition import Cost, assess, find_partition
from petra_core.shares import stage_ranges
from petra_core.staleness import one_f_one_b, per_device
from petra_core.tape import as_streams
from petra_core.update_rule import UpdateRule
from tests import toys
from tests.constructs import spectral
from tests.messages import message_of_expression, rewrite
from tests.own_networks import cnn
from tests.refused import IMPURE, UNREGISTERED, UNTRACKED, Drawing, past_the_streams, reading_data, reading_past_modules
from tests.toys import computing
from tests.user_networks import RECOMPUTING, REPLACING, batches, head, made, network, residual, step
from tests.user_networks import sgd as plain_sgd

FILE = Path(__file__).with_name("errors.txt")
X, Y = batches(1)[0]
IDENTITY = ReversibleStage(nn.Identity())
MINE = Method("MINE", "Mine", Inputs.STASH, Weights.STASH, pipelined=True)
PREDICTED, LINEAR = PredictedWeights(), PredictedWeights(linear=True)


def stepped(method: Method = methods.PETRA, *, x: Any = X, y: Any = Y, net: list[Stage] | None = None) -> object:
    p = made(network() if net is None else net, method)
    return [p.step(x, y) for _ in range(8)]


def refused(
    make: Callable[[], list[Stage]],
    which: Sequence[Method] = methods.ALL,
    *,
    change: Callable[[nn.Module], object] = lambda function: None,
    steps: int = 0,
    **settings: Any,
) -> None:
    """Train a network, whose stage 1 changes after some steps. All of these methods must raise the same error."""
    found = []
    for method in which:
        p = made(make(), method, **settings)
        step(p, steps)
        change(p.stages[1].function)
        try:
            step(p, 14)
        except Exception as error:
            found.append(error)
        else:
            raise AssertionError(f"{method} raises no error")
    assert len(set(map(str, found))) == 1, found
    raise found[0]


def impure(kind: str) -> list[Stage]:
    random.seed(0)  # with these seeds no draw is above 0.999
    np.random.seed(0)
    return network(IMPURE[kind])


class InPlace(nn.Module):
    """A module that writes to its input."""

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0].relu_(), streams[1]


def in_place() -> list[Stage]:
    return [network()[0], BufferedStage(InPlace()), *network()[2:]]


def borrowing() -> list[Stage]:
    """Return a network whose stage 2 uses the module of stage 1."""
    net = network()
    lenders = [net[1].function]
    borrows = computing(lambda m, x: m.f(lenders[0](x)))
    return [*net[:2], ReversibleStage(borrows(nn.Linear(4, 4).double())), net[3]]


def with_unregistered_loss() -> list[Stage]:
    module = nn.Linear(2, 2).double()
    return with_loss(lambda output, target: F.cross_entropy(module(output), target))


def sharing_statistics() -> list[Stage]:
    net, norm = network(), nn.BatchNorm1d(4, affine=False).double()
    blocks = [ReversibleStage(nn.Sequential(norm, stage.function)) for stage in net[1:3]]
    return [net[0], *blocks, net[3]]


def with_a_frozen_bias() -> list[Stage]:
    net = network()
    net[1].function[2].bias.requires_grad_(False)
    return net


def with_loss(loss: Callable[[Tensor, Tensor], Any]) -> list[Stage]:
    return [*network()[:3], HeadStage(head().double(), loss)]


def between(*stages: Any) -> Pipeline:
    """Return a pipeline of these stages between a stem and a head."""
    return Pipeline([toys.stem(2), *stages, toys.head(2)], methods.PETRA)


def of_three(method: Any = methods.PETRA, **settings: Any) -> Pipeline:
    return Pipeline(toys.network(3), method, **settings)


def on(*devices: str) -> Pipeline:
    """Return a pipeline whose stages claim to be on these devices in turn; their tensors are on the CPU."""
    p = of_three(optimizer=toys.sgd)
    for worker in p.workers:
        worker.device = torch.device(devices[worker.index % len(devices)])
    return p


class Step(UpdateRule):
    name = "one"

    def step(self, delay: float) -> None: ...  # noqa: F811  # the engine calls it by position


class Gradient(UpdateRule):
    name = "one"

    def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
        return gradient


def lookup(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Look up with `F.embedding`, whose sparse gradient cannot be detected from the modules."""
    y = F.embedding(x, m.table, sparse=True)
    return y, y.clone()


def looking_up() -> list[Stage]:
    module = computing(lookup, table=lambda: nn.Parameter(torch.ones(5, 4).double()))(nn.Identity())
    return [BufferedStage(module), *network()[1:]]


def views(f: nn.Module) -> nn.Module:
    """Return a module with two parameters, of which the second is the transpose of the first."""
    module = nn.Module()
    module.one = nn.Parameter(torch.eye(4).double())
    module.other = nn.Parameter(module.one.data.t())
    return module


def growing(m: Any, x: Tensor) -> Tensor:
    """Update running statistics in a plain attribute."""
    m.mean = 0.9 * m.mean + 0.1 * x.detach().mean(0)
    return m.f(x)


GROWING = computing(growing, mean=lambda: torch.zeros(4).double())


def growing_in_a_dict(m: Any, x: Tensor) -> Tensor:
    """Update running statistics in a dict."""
    m.statistics["mean"].lerp_(x.detach().mean(0), 0.1)
    return m.f(x)


def writing_past_its_module(f: nn.Module) -> nn.Module:
    """Return a module with a buffer, which a hook writes through a closure."""
    mean = torch.zeros(4, dtype=torch.float64)

    def track(module: nn.Module, inputs: Any, output: Tensor) -> None:
        mean.lerp_(output.detach().mean(0), 0.1)

    f.register_buffer("mean", mean)
    f.register_forward_hook(track)
    return f


def sparse() -> ReversibleStage:
    """Return a stage with a sparse buffer."""
    function = toys.residual(2)
    function.register_buffer("graph", torch.eye(2).to_sparse())
    return ReversibleStage(function)


class WithoutRate(torch.optim.SGD):
    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, lr=lr)


class OwnStep(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def with_a_new_group() -> None:
    p = of_three(optimizer=lambda parameters: toys.sgd(parameters[:1]))
    p.optimizers[0].add_param_group({"params": [*p.stages[0].parameters()][1:]})
    p.set_learning_rate(0.1)


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


def load(
    saved: Pipeline, other: Pipeline, change: Callable[[dict[str, Any]], object] = len, *, other_method: bool = False
) -> None:
    """Load the state of a pipeline into another one, after a change."""
    state = saved.state_dict()
    change(state)
    other.load_state_dict(state, other_method=other_method)


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


def with_second_loss(hook: str, **settings: Any) -> object:
    """Let a hook add the gradients of a second loss of all weights."""
    net = network()

    def differentiate(*_: object) -> None:
        torch.cat([weight.flatten() for stage in net for weight in stage.parameters()]).norm().backward()

    return made(net, methods.BACKPROPAGATION, **{hook: differentiate}, **settings).step(X, Y)


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
