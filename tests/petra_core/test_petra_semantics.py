"""Test the engine against the paper's equations step by step, and the reference against simpler results."""

import bisect
import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, merge, methods, models
from petra_core.optimizers import sgd
from petra_core.staleness import forward_lags
from tests import toys
from tests.compare import assert_close, relative_error
from tests.reference import RULES, ReferencePart, Sgd, after_step, entries, simulate

TOLERANCE = 1e-12

# Pattern and its k. A word is a stage and a letter a part of it: b buffered, r reversible, h head.
NETWORKS = {"b h": 2, "b b h": 1, "b r r r h": 4, "b r r r b r h": 3, "b r r r r r h": 1, "br rr brr rh": 2}
FEATURES, WIDTH, CLASSES, BATCH = 5, 4, 3, 6


class Mix(nn.Module):
    """A block of two streams that cannot be inverted."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, x_tilde = streams
        return torch.tanh(self.a(x)) + self.b(x_tilde), torch.tanh(self.c(x))


class Shift(nn.Module):
    """A parameter of the shape of its input, so that its gradient is the message from above and not a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(0.1 * torch.randn(BATCH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def part(kind: str, *, first: bool, norm: bool) -> ReferencePart:
    """Return a smooth part in float64, because rounding could flip a ReLU."""
    if kind == "r":
        # No bias before BatchNorm: its gradient is zero with an arbitrary rounding error.
        norms = [nn.BatchNorm1d(6)] if norm else []
        module = nn.Sequential(
            nn.Linear(WIDTH, 6, bias=not norm), *norms, nn.Tanh(), nn.Linear(6, WIDTH), nn.Tanh(), Shift()
        )
    elif kind == "h":
        module = nn.Sequential(models.ConcatStreams(), nn.Linear(2 * WIDTH, CLASSES))
    elif first:
        module = nn.Sequential(nn.Linear(FEATURES, 2 * WIDTH), nn.Tanh(), models.SplitStreams())
    else:
        module = Mix()
    return ReferencePart({"r": "reversible", "h": "head", "b": "buffered"}[kind], module.double())


def network(pattern: str, *, norm: bool = True) -> list[list[ReferencePart]]:
    torch.manual_seed(len(pattern))
    return [
        [part(kind, first=(j, p) == (0, 0), norm=norm) for p, kind in enumerate(word)]
        for j, word in enumerate(pattern.split())
    ]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(BATCH, FEATURES, dtype=torch.float64), torch.randint(CLASSES, (BATCH,))) for _ in range(count)]


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


def flat(weights: list[dict[str, Tensor]]) -> list[Tensor]:
    """Return the tensors of all parts of a stage or network."""
    return [tensor for of_part in weights for tensor in of_part.values()]


def test_reference_for_delayed_gradients_equals_autograd():
    """With stashed inputs and weights, gradients are those of the network with each stage's weights at its forward."""
    stages, data = network("b r r r h"), batches(12)
    history = simulate(stages, RULES["DELAYED_GRADIENTS"], 1, Sgd(lambda tick: 0.2), data, range(12))
    model = plain(stages)
    names = [name for name, _ in model.named_parameters()]
    for m, (x, y) in enumerate(data):
        seen = [tensor for j in range(len(stages)) for tensor in flat(history.weights[m + j][j])]
        leaves = [tensor.clone().requires_grad_() for tensor in seen]
        loss = F.cross_entropy(functional_call(model, dict(zip(names, leaves, strict=True)), (x,)), y)
        gradients = [tensor for j in range(len(stages)) for tensor in flat(history.gradients[j, m])]
        assert_close(gradients, torch.autograd.grad(loss, leaves), TOLERANCE)


def pipeline_of(stages: list[list[ReferencePart]], method: methods.Method, accumulation: int, **settings) -> Pipeline:
    kinds = {"reversible": ReversibleStage, "buffered": BufferedStage, "head": HeadStage}
    made = [merge([kinds[kind](copy.deepcopy(module)) for kind, module in stage]) for stage in stages]
    return Pipeline(made, method, accumulation=accumulation, **settings)


def weights_of(pipeline: Pipeline) -> list[list[dict[str, Tensor]]]:
    return [[dict(p.function.named_parameters()) for p in stage.parts()] for stage in pipeline.stages]


def statistics_of(pipeline: Pipeline) -> list[list[dict[str, Tensor]]]:
    return [[dict(p.function.named_buffers()) for p in stage.parts()] for stage in pipeline.stages]


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
@pytest.mark.parametrize("pattern", NETWORKS)
def test_training_matches_reference_after_every_step(pattern, method):
    """Train on 36 micro-batches with a drain, a learning rate that changes at each, Nesterov momentum and decay."""
    stages, accumulation, rule = network(pattern), NETWORKS[pattern], RULES[method.name]
    parts = (24, 12)
    data = batches(sum(parts))
    rates = [0.05 * (1 + m % 5) / 5 for m in range(len(data))]
    enters: list[int] = []
    for count in parts:
        start = enters[-1] + 2 * len(stages) - 1 if enters else 0
        enters += [start + enter for enter in entries(rule, len(stages), count)]
    reference = Sgd(
        lambda tick: rates[bisect.bisect(enters, tick) - 1],  # the rate of the last micro-batch to enter
        momentum=0.9,
        nesterov=True,
        weight_decay=lambda weight: 0.01 if weight.dim() > 1 else 0.0,
    )
    history = simulate(stages, rule, accumulation, reference, data, enters)
    pipeline = pipeline_of(stages, method, accumulation, optimizer=sgd(1.0, weight_decay=0.01))

    losses: list[Tensor] = []
    ends = [*(parts[0] - 1,) * parts[0], *(len(data) - 1,) * parts[1]]  # the last one before the next drain
    later = forward_lags(pipeline.staleness)
    for m, (x, y) in enumerate(data):
        if m == parts[0]:
            pipeline.drain()
            assert_close(weights_of(pipeline), history.weights[enters[m]], TOLERANCE)
        # Stage j processes a micro-batch j ticks later, after others have entered.
        pipeline.set_learning_rate(lambda j, m=m: rates[min(m + later[j], ends[m])])
        losses.append(pipeline.step(x, y))
        end = enters[m] if method.pipelined else enters[m] + 2 * len(stages) - 2
        for actual, expected in ((weights_of, history.weights), (statistics_of, history.statistics)):
            assert_close(actual(pipeline), after_step(expected, end), TOLERANCE)
    pipeline.drain()
    assert_close(weights_of(pipeline), history.weights[-1], TOLERANCE)
    assert_close(statistics_of(pipeline), history.statistics[-1], TOLERANCE)
    assert_close(losses, [history.losses[m] for m in range(len(data))], TOLERANCE)


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_in_place_gradient_change_affects_only_the_update(method):
    """Clipping does this. With `Shift`, a gradient could share memory with the message in flight to the stage below."""

    def double(stage_index: int, version: int, stage: nn.Module) -> None:
        for parameter in stage.parameters():
            parameter.grad.mul_(2)

    stages, data, rule = network("b r r b r h", norm=False), batches(12), RULES[method.name]
    history = simulate(stages, rule, 1, Sgd(lambda tick: 0.1), data, entries(rule, len(stages), len(data)))
    pipeline = pipeline_of(stages, method, 1, optimizer=lambda p: torch.optim.SGD(p, lr=0.05), before_update=double)
    toys.train(pipeline, data)
    assert_close(weights_of(pipeline), history.weights[-1], TOLERANCE)


def trained(pattern: str, method: methods.Method, learning_rate: float) -> Tensor:
    """Return all weights after forty micro-batches as one vector."""
    stages = network(pattern, norm=False)  # BatchNorm over six samples amplifies any difference
    pipeline = pipeline_of(stages, method, 1, optimizer=lambda p: torch.optim.SGD(p, lr=learning_rate))
    toys.train(pipeline, batches(40))
    return torch.cat([parameter.detach().flatten() for parameter in pipeline.model.parameters()])


@pytest.mark.parametrize(
    ("pattern", "close"),
    [("b r r r h", []), ("b r b r h", [("DSP", "PETRA"), ("DELAYED_GRADIENTS", "APPROXIMATE_INPUTS")])],
)
def test_methods_differ_unless_reconstruction_is_unused(pattern, close):
    """Otherwise only x~ is reconstructed wrongly and no stage uses it, so PETRA equals DSP."""
    start = trained(pattern, methods.PETRA, 0.0)
    way = {method.name: trained(pattern, method, 0.2) - start for method in methods.PAPER if method.pipelined}
    assert len(way) == 4
    for pair in itertools.combinations(way, 2):
        distance = relative_error(*(way[name] for name in pair))  # relative to the change of weights
        assert distance < 1e-9 if pair in close else distance > 1e-3, f"{pair} are {distance:.3g} apart"
