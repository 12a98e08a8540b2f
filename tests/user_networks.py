"""Make and train networks like a user's: four stages of linear layers in float64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, methods
from petra_core.methods import Method
from petra_core.models import ConcatStreams, DuplicateStreams
from tests import toys
from tests.compare import assert_close

RECOMPUTING = tuple(method for method in methods.ALL if not method.keeps_graph)
REPLACING = tuple(method for method in methods.ALL if method.stashes_weights)
SEED = 3
batches = functools.partial(toys.batches, size=5, shape=(3,), classes=2)


def residual() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def stem() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), DuplicateStreams())


def head() -> nn.Module:
    return nn.Sequential(ConcatStreams(), nn.Linear(8, 2))


def network(function: Callable[[nn.Module], nn.Module] = lambda f: f) -> list[Stage]:
    """Return four stages in float64 with `function` around both residual functions."""
    torch.manual_seed(0)
    stages: list[Stage] = [
        BufferedStage(stem()),
        ReversibleStage(function(residual())),
        ReversibleStage(function(residual())),
        HeadStage(head()),
    ]
    return [stage.double() for stage in stages]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def made(stages: Sequence[Stage], method: Method, **settings: Any) -> Pipeline:
    settings = {"accumulation": 6 if method.double_buffered else 1, "optimizer": sgd, "seed": SEED} | settings
    return Pipeline(stages, method, **settings)


def step(p: Pipeline, count: int) -> None:
    for x, y in batches(count):
        p.step(x, y)


def trained(stages: Sequence[Stage], method: Method, count: int = 12, **settings: Any) -> dict[str, Tensor]:
    """Return losses and state after `count` micro-batches."""
    p = made(stages, method, **settings)
    losses = [p.step(x, y) for x, y in batches(count)]
    p.drain()
    assert p.stages[0].function is not None
    state: dict[str, Tensor] = {name: value.clone() for name, value in p.model.state_dict().items()}
    return state | {"losses": torch.stack([loss for loss in losses if loss is not None])}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Check that tensors are equal by position, ignoring their names."""
    assert len(actual) == len(expected)
    assert_close(list(actual.values()), list(expected.values()), tolerance)
