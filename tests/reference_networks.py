"""Make networks and data with which the engine is compared with `tests.reference`."""

import copy
import functools
import itertools
import random
from typing import Any

import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, merge, methods, models
from tests import toys
from tests.reference import ReferencePart

FEATURES, WIDTH, CLASSES, BATCH = 5, 4, 3, 6
batches = functools.partial(toys.batches, size=BATCH, shape=(FEATURES,), classes=CLASSES, seed=0)


def mix(m: Any, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return two streams that cannot be inverted."""
    x, x_tilde = streams
    return torch.tanh(m.a(x)) + m.b(x_tilde), torch.tanh(m.c(x))


class Shift(nn.Module):
    """A parameter of the shape of its input, so that its gradient is the message from above and not a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(0.1 * torch.randn(BATCH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def part(kind: str, *, first: bool, norm: bool, dropout: float) -> ReferencePart:
    """Return a smooth part in float64, because rounding could flip a ReLU."""
    drops = [nn.Dropout(dropout)] if dropout else []
    if kind == "r":
        # No bias before BatchNorm: its gradient is zero with an arbitrary rounding error.
        norms = [nn.BatchNorm1d(6)] if norm else []
        module = nn.Sequential(
            nn.Linear(WIDTH, 6, bias=not norm), *norms, nn.Tanh(), nn.Linear(6, WIDTH), nn.Tanh(), Shift(), *drops
        )
    elif kind == "h" and first:
        module = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    elif kind == "h":
        module = nn.Sequential(models.ConcatStreams(), nn.Linear(2 * WIDTH, CLASSES))
    elif first:
        module = nn.Sequential(nn.Linear(FEATURES, 2 * WIDTH), nn.Tanh(), *drops, models.SplitStreams())
    else:
        module = toys.computing(mix, **dict.fromkeys("abc", lambda: nn.Linear(WIDTH, WIDTH)))()
    return ReferencePart({"r": "reversible", "h": "head", "b": "buffered"}[kind], module.double())


def network(pattern: str, *, norm: bool = True, dropout: float = 0.0) -> list[list[ReferencePart]]:
    """Return a network. A word of the pattern is a stage and a letter a part: b buffered, r reversible, h head."""
    torch.manual_seed(len(pattern))
    return [
        [part(kind, first=(j, p) == (0, 0), norm=norm, dropout=dropout) for p, kind in enumerate(word)]
        for j, word in enumerate(pattern.split())
    ]


def plain(stages: list[list[ReferencePart]]) -> nn.Sequential:
    """Return a copy of the network for plain autograd."""
    kinds = {"reversible": Coupling, "buffered": nn.Sequential, "head": nn.Sequential}
    return nn.Sequential(*(kinds[kind](copy.deepcopy(module)) for stage in stages for kind, module in stage))


class Coupling(nn.Module):
    def __init__(self, residual: nn.Module) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, x_tilde = streams
        return x_tilde + self.residual(x), x


def pipeline_of(stages: list[list[ReferencePart]], method: methods.Method, accumulation: int, **settings) -> Pipeline:
    kinds = {"reversible": ReversibleStage, "buffered": BufferedStage, "head": HeadStage}
    made = [merge([kinds[kind](copy.deepcopy(module)) for kind, module in stage]) for stage in stages]
    return Pipeline(made, method, accumulation=accumulation, **settings)


def random_vector(generator: random.Random, stages: int) -> tuple[int, ...]:
    """Return a vector whose neighbours are often equal and otherwise differ by 1, 2 or 3."""
    rises = [generator.choice((0, 0, 1, 1, 2, 3)) for _ in range(stages - 1)]
    return (*reversed([*itertools.accumulate(rises)]), 0)
