"""Test property 2: a user's module trains as with plain autograd, or the first micro-batches refuse it by name.

Every construct is tried with every method in float64. There are two references: the gradients of plain autograd while
weights are constant, and a twin of the network without the construct while they change.
"""

import copy
import functools
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, StageError, merge, methods
from petra_core.delay import Average, PredictedWeights
from petra_core.methods import Method
from petra_core.models import ConcatStreams, DuplicateStreams
from petra_core.update_rule import UpdateRule, describe
from tests.compare import assert_bitwise_equal, assert_close
from tests.properties import assert_resumes_bitwise, plain_gradients

KEEPING = tuple(method for method in methods.ALL if method.keeps_graph)
RECOMPUTING = tuple(method for method in methods.ALL if not method.keeps_graph)
REPLACING = tuple(method for method in methods.ALL if method.stashes_weights)
SEED = 3


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


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 3, generator=generator, dtype=torch.float64), torch.randint(2, (5,), generator=generator))
        for _ in range(count)
    ]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def made(stages: Sequence[Stage], method: Method, **settings: Any) -> Pipeline:
    settings = {"accumulation": 6 if method.double_buffered else 1, "optimizer": sgd, "seed": SEED} | settings
    return Pipeline(stages, method, **settings)


def step(p: Pipeline, count: int) -> None:
    for x, y in batches(count):
        p.step(x, y)


def trained(stages: Sequence[Stage], method: Method, count: int = 24, **settings: Any) -> dict[str, Tensor]:
    """Return losses and state after `count` micro-batches."""
    p = made(copy.deepcopy(list(stages)), method, **settings)
    losses = [p.step(x, y) for x, y in batches(count)]
    p.drain()
    assert p.stages[0].function is not None
    state: dict[str, Tensor] = {name: value.clone() for name, value in p.model.state_dict().items()}
    return state | {"losses": torch.stack([loss for loss in losses if loss is not None])}


def gradients(stages: Sequence[Stage], method: Method) -> dict[str, Tensor]:
    """Return the pipeline's mean gradients of six micro-batches with constant weights."""
    found: dict[str, Tensor] = {}

    def look(index: int, version: int, stage: Stage) -> None:
        assert version == 0
        found.update({f"{index}.{n}": p.grad.clone() for n, p in stage.named_parameters() if p.grad is not None})

    p = made(copy.deepcopy(list(stages)), method, accumulation=6, optimizer=None, before_update=look)
    for x, y in batches(6):
        p.step(x, y)
    p.drain()
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[0])))  # stage 0 first


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Check that tensors are equal by position, ignoring their names."""
    assert len(actual) == len(expected)
    assert_close(list(actual.values()), list(expected.values()), tolerance)


# --- constructs that train correctly -----------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A function that is recomputed in its backward."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return checkpoint(self.function, x, use_reentrant=False)


class _EvaluatedAgain(torch.autograd.Function):
    """A function like the reversible blocks of RevTorch and memcnn, whose backward evaluates and calls `backward`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: nn.Module) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            y: Tensor = function(x)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(gradients[0])
        return x.grad, None


class EvaluatedAgain(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _EvaluatedAgain.apply(x, self.function)
        return result


class _WeightGradients(torch.autograd.Function):
    """A function whose backward evaluates again and returns the gradients of the weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: nn.Module, *weights: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            y: Tensor = function(x)
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        of_x, *rest = torch.autograd.grad(y, [x, *ctx.function.parameters()], gradients[0])
        return of_x, None, *rest


class WeightGradients(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _WeightGradients.apply(x, self.function, *self.function.parameters())
        return result


def normed(wrap: Callable[[nn.Module], nn.Module], *last: nn.Module) -> Callable[[nn.Module], nn.Module]:
    # There is no bias before BatchNorm, because its gradient is zero up to rounding.
    return lambda f: wrap(nn.Sequential(*f[:2], nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), *last))


def plainly(f: nn.Module) -> nn.Module:
    return f


def dropping(f: nn.Module) -> nn.Module:
    return nn.Sequential(f, nn.Dropout(0.3))


#: A wrapper of residual functions and its twin that does not evaluate again.
EVALUATING: dict[str, tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], nn.Module]]] = {
    "checkpoint": (Checkpointed, plainly),
    "checkpoint of BatchNorm": (normed(Checkpointed), normed(plainly)),
    "checkpoint of BatchNorm and more": (normed(Checkpointed, nn.Tanh()), normed(plainly, nn.Tanh())),
    "checkpoint of dropout": (lambda f: Checkpointed(dropping(f)), dropping),
    "checkpoint of checkpoint": (lambda f: Checkpointed(Checkpointed(f)), plainly),
    "inner backward": (EvaluatedAgain, plainly),
    "gradients of weights by an inner graph": (WeightGradients, plainly),
}


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("construct", EVALUATING)
def test_recomputing_constructs_train_as_their_twins(construct: str, method: Method) -> None:
    """Constructs that recompute in their backward train as equivalent ones that do not."""
    wrapped, plain = EVALUATING[construct]
    assert_same(trained(network(wrapped), method), trained(network(plain), method))
    if "dropout" not in construct:
        assert_same(gradients(network(wrapped), method), plain_gradients(network(plain), batches(6)))


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
@pytest.mark.parametrize("rule", [Average(), PredictedWeights()], ids=str)
def test_recomputing_constructs_train_under_delay_rules(rule: UpdateRule, method: Method) -> None:
    """Recomputing constructs train as plain ones under rules that replace weights."""
    for wrap in (Checkpointed, EvaluatedAgain):
        assert_same(trained(network(wrap), method, delay=[rule]), trained(network(), method, delay=[rule]))


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_checkpointed_stem_and_head_train_as_plain_ones(method: Method) -> None:
    net = network()
    net[0] = BufferedStage(Checkpointed(net[0].function))
    net[-1] = HeadStage(Checkpointed(net[-1].function))
    assert_same(trained(net, method), trained(network(), method))


@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.PETRA], ids=str)
def test_resume_with_checkpointed_functions_is_bitwise(method: Method, tmp_path: Path) -> None:
    net = network(normed(Checkpointed, nn.Dropout(0.2)))
    assert_resumes_bitwise(lambda: made(copy.deepcopy(net), method), batches(20), 10, tmp_path)


class Streams(nn.Module):
    """A first stage whose second stream shares memory with another tensor, or is a copy of it."""

    def __init__(self, kind: str, *, copied: bool) -> None:
        super().__init__()
        self.kind, self.copied = kind, copied
        self.linear, self.wide = nn.Linear(3, 4), nn.Linear(3, 8)
        self.query = nn.Parameter(torch.ones(4))
        self.whole = nn.Parameter(torch.ones(5, 4))
        self.register_buffer("mean", torch.zeros(5, 4))
        self.scratch = torch.zeros(5, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        if self.kind == "view of a parameter":
            second = self.query.expand(len(x), -1)
        elif self.kind == "parameter":
            second = self.whole
        elif self.kind == "buffer":
            with torch.no_grad():
                self.mean = self.mean if self.mean.dtype is h.dtype else self.mean.to(h.dtype)
            second = self.mean
        elif self.kind == "memory of an attribute":
            self.scratch.copy_(x[:, :1].detach().expand(-1, 4))
            second = self.scratch
        elif self.kind == "both the same":
            second = h
        else:
            h, second = self.wide(x).chunk(2, 1)
        return h, second.clone() if self.copied else second


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize(
    "kind",
    ["view of a parameter", "parameter", "buffer", "memory of an attribute", "both the same", "halves of a tensor"],
)
def test_aliased_outputs_train_as_copies(kind: str, method: Method, tmp_path: Path) -> None:
    """Outputs that share memory with other tensors train bitwise as copies of them, and resume bitwise."""

    def net(*, copied: bool) -> list[Stage]:
        torch.manual_seed(1)
        return [BufferedStage(Streams(kind, copied=copied)).double(), *network()[1:]]

    assert_same(trained(net(copied=False), method), trained(net(copied=True), method), 0.0)
    assert_same(gradients(net(copied=False), method), plain_gradients(net(copied=True), batches(6)))
    assert_resumes_bitwise(lambda: made(net(copied=False), method), batches(16), 8, tmp_path)


class Tracking(nn.Module):
    """A module that returns a buffer that it writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("mean", torch.zeros(5, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        self.mean.mul_(0.5).add_(h.detach(), alpha=0.5)
        return h, self.mean


def test_message_does_not_share_memory_with_buffer() -> None:
    p = made([BufferedStage(Tracking()).double(), *network()[1:]], methods.DELAYED_GRADIENTS)
    for x, y in batches(3):
        p.step(x, y)
    buffer = p.stages[0].function.mean
    for message in p.workers[1].from_below:
        assert message.streams is not None
        assert message.streams[1].untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr()


class Passing(nn.Module):
    """A module that changes one stream and passes on a view of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.function = nn.Linear(4, 4)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.function(streams[0]), streams[1].view(streams[1].shape)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_stages_that_return_views_train(method: Method) -> None:
    """Weight prediction once failed with an AssertionError."""
    net = network()
    net.insert(1, BufferedStage(Passing()).double())
    k = 8 if method.double_buffered else 1
    predicts = method.pipelined and not method.double_buffered
    for delay in ([], [PredictedWeights()]) if predicts else ([],):
        made(net, method, accumulation=k)  # the same stages may be used again
        assert trained(net, method, accumulation=k, delay=delay)["losses"].isfinite().all()


class Biased(nn.Module):
    """A residual function that returns a view of a parameter."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        del f
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand_as(x)


class Copied(Biased):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clone()


class Tied(nn.Module):
    """A function that uses one weight twice, registered under two names."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.f = nn.Linear(4, 4), nn.Linear(4, 4), f
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(self.second(torch.tanh(self.first(x))))
        return y


class Untied(Tied):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(F.linear(torch.tanh(self.first(x)), self.first.weight, self.second.bias))
        return y


class Recurrent(nn.Module):
    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f, self.lstm = f, nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(self.lstm(x[:, None])[0][:, 0])
        return y


def reparametrised(f: nn.Module) -> nn.Module:
    return nn.Sequential(f, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


class Differentiates(nn.Module):
    """A function that needs gradients in its forward."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x if x.requires_grad else x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.f(z).tanh().sum(), z, create_graph=True)
        return force


class CachesConstants(nn.Module):
    """A function that reads a constant, which the first block to run has created."""

    cache: dict[int, Tensor]

    def __init__(self, f: nn.Module, cache: dict[int, Tensor]) -> None:
        super().__init__()
        self.f, self.cache = f, cache

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.cache:
            self.cache[x.shape[1]] = torch.arange(x.shape[1], dtype=x.dtype).cos()
        y: Tensor = self.f(x * self.cache[x.shape[1]])
        return y


RIGHT: dict[str, Callable[[nn.Module], nn.Module]] = {
    "view of a parameter": Biased,
    "tied": Tied,
    "LSTM": Recurrent,
    "weight_norm": reparametrised,
    "DataParallel": lambda f: nn.DataParallel(f),
    "differentiates in its forward": Differentiates,
    "a cache of constants": functools.partial(CachesConstants, cache={}),
    "full backward hook": lambda f: _hooked(f),
}


def _hooked(f: nn.Module) -> nn.Module:
    f.register_full_backward_hook(lambda _module, of_inputs, _of_outputs: (2 * of_inputs[0],))
    return f


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("construct", RIGHT)
def test_other_constructs_equal_autograd(construct: str, method: Method) -> None:
    """Gradients of views, tied weights, LSTMs, parametrizations and hooks equal autograd's."""
    net = network(RIGHT[construct])
    expected = plain_gradients(net, batches(6))
    assert_same(gradients(net, method), expected)
    trained(net, method)  # it is not refused while weights change either


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize(("wrap", "twin"), [(Biased, Copied), (Tied, Untied)])
def test_views_and_tied_weights_train_as_their_twins(wrap: Any, twin: Any, method: Method) -> None:
    """Views of parameters and tied weights train as equivalent networks without them."""
    assert_same(trained(network(wrap), method), trained(network(twin), method))


class Temperature(nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.count += 1
        return F.cross_entropy(output * self.temperature, target)


class Scaled(nn.Module):
    """The twin of `Temperature`, whose parameter belongs to the module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.temperature = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, streams: Any) -> Tensor:
        y: Tensor = self.module(streams) * self.temperature
        return y


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_loss_parameters_are_trained(method: Method) -> None:
    """A parameter of the loss trains as one of the head, and inspection does not update the loss's buffer."""
    net, twin = network(), network()
    net[-1] = HeadStage(net[-1].function, Temperature())
    twin[-1] = HeadStage(Scaled(twin[-1].function))
    assert_same(gradients(net, method), plain_gradients(net, batches(6)))
    p, other = made(net, method), made(twin, method)
    for x, y in batches(24):
        p.step(x, y)
        other.step(x, y)
    temperature, expected = net[-1].loss.temperature, twin[-1].module.temperature
    assert_close(temperature, expected)
    assert temperature != 1
    assert net[-1].loss.count == 24  # evaluations of the inspection do not count


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_loss_may_use_head_weights(method: Method) -> None:
    """A loss that uses the head's weights trains as an equivalent head does."""
    net = network()
    module = net[-1].function
    net[-1] = HeadStage(module, lambda output, target: F.cross_entropy(output, target) + 0.1 * module[1].weight.norm())

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(module)

        def forward(self, streams: Any) -> Tensor:
            return torch.cat([self.inner(streams), self.inner[1].weight.norm().expand(len(streams[0]), 1)], 1)

    twin = [*network()[:3], HeadStage(Normed(), lambda o, y: F.cross_entropy(o[:, :2], y) + 0.1 * o[0, 2])]
    p, other = made(net, method), made(copy.deepcopy(twin), method)
    for x, y in batches(24):
        p.step(x, y)
        other.step(x, y)
    assert_same(dict(p.model.state_dict()), dict(other.model.state_dict()))


# --- hooks and gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("delay", [[], [Average()], [PredictedWeights()]], ids=describe)
def test_parameter_hooks_run_once_per_backward(delay: list[UpdateRule], method: Method) -> None:
    """A hook of a parameter runs once per backward and can replace the gradient."""
    if not method.pipelined or method.stashes_weights:
        delay = []
    net = network()
    masked = net[1].function[0].weight
    before, seen = masked.detach().clone(), []
    masked.register_hook(lambda gradient: seen.append(1) or gradient * 0)
    net[2].function[0].weight.register_hook(lambda gradient: None)
    p = made(net, method, optimizer=lambda q: torch.optim.SGD(q, lr=0.1, momentum=0.9), delay=delay)
    for x, y in batches(24):
        p.step(x, y)
    p.drain()
    assert len(seen) == 24
    assert_bitwise_equal(masked.detach(), before)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_earlier_gradients_do_not_affect_training(method: Method) -> None:
    """Gradients that parameters had before the pipeline was made do not affect training."""
    net = network()
    expected = trained(net, method)
    for x, y in batches(2):
        F.cross_entropy(nn.Sequential(*net)(x), y).backward()
    p = made(net, method)
    losses = [loss for x, y in batches(24) if (loss := p.step(x, y)) is not None]
    p.drain()
    assert_bitwise_equal(torch.stack(losses), expected["losses"])


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("k", [1, 4])
def test_external_gradient_change_raises(k: int, method: Method) -> None:
    """The sums of gradients are not in `.grad`, so clearing it changes nothing."""
    k = max(k, 6) if method.double_buffered else k
    p, undisturbed = (made(network(), method, accumulation=k) for _ in range(2))

    def write() -> None:
        sum(parameter.sum() for parameter in p.model.parameters()).backward()

    for x, y in batches(10):
        p.step(x, y)
        undisturbed.step(x, y)
        write()
        p.model.zero_grad()
    assert_bitwise_equal(p.model.state_dict(), undisturbed.model.state_dict())
    write()
    with pytest.raises(RuntimeError, match=r"stage \d: the gradient of parameter .* was changed from outside"):
        step(p, 4)


# --- constructs that are refused ---------------------------------------------------------------------------------


class Impure(nn.Module):
    """A residual function with side effects or hidden state."""

    def __init__(self, f: nn.Module, kind: str) -> None:
        super().__init__()
        self.f, self.kind = f, kind
        self.count, self.calls = 0, [0]
        self.generator = torch.Generator().manual_seed(0)
        self.numpy = np.random.default_rng(0)
        self.register_buffer("scale", torch.ones(()))
        self.teacher = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, f"_{self.kind}")(x)

    def _python(self, x: Tensor) -> Tensor:
        return self.f(x) if random.random() < 0.999 else 0 * x

    def _numpy_global(self, x: Tensor) -> Tensor:
        return self.f(x) * float(np.random.rand() < 0.999)

    def _numpy_own(self, x: Tensor) -> Tensor:
        return self.f(x) * float(self.numpy.random() < 0.999)

    def _torch_own(self, x: Tensor) -> Tensor:
        return self.f(x) * torch.bernoulli(torch.tensor(0.999), generator=self.generator)

    def _counter(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.f(x) if self.count < 1000 else x

    def _hidden_counter(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return self.f(x) * self.calls[0]

    def _buffer(self, x: Tensor) -> Tensor:
        self.scale *= 1.01
        return self.f(x) * self.scale

    def _frozen(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.mul_(0.9)
        return self.f(x)

    def _frozen_data(self, x: Tensor) -> Tensor:
        self.teacher.data.mul_(0.9)
        return self.f(x)

    def _trained(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.f[0].weight.data.mul_(0.99)
        return self.f(x)


def spectral(f: nn.Module) -> nn.Module:
    return nn.Sequential(f, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))


IMPURE = {
    "python": "draws random numbers from Python's random",
    "numpy_global": r"draws random numbers from numpy\.random",
    "numpy_own": "draws random numbers from its private generator numpy",
    "torch_own": "draws random numbers from (a private torch.Generator|its private generator generator)",
    "counter": r"an evaluation changes count of its module \(Impure\)",
    "hidden_counter": "gives another output when it is evaluated again",
    "buffer": "gives another output when it is evaluated again",
    "frozen": r"parameter residual\.teacher is written in the forward",
    "frozen_data": r"parameter residual\.teacher is written in the forward",
    "trained": r"parameter residual\.f\.0\.weight is written in the forward",
}


@pytest.mark.parametrize("kind", IMPURE)
def test_impure_functions_raise_if_recomputed(kind: str) -> None:
    """Functions with side effects or hidden state raise StageError under methods that recompute."""
    random.seed(0)  # with these seeds no draw is above 0.999
    np.random.seed(0)
    for method in methods.ALL:
        net = network(functools.partial(Impure, kind=kind))
        if method in RECOMPUTING or (kind in ("frozen", "frozen_data", "trained") and method in REPLACING):
            with pytest.raises(StageError, match=f"stage 1: .*{IMPURE[kind]}.*; its backward evaluates"):
                trained(net, method, 2)
        elif kind not in ("trained", "hidden_counter", "buffer"):  # these differ between runs of the reference
            assert_same(gradients(net, method), plain_gradients(network(), batches(6)))


def test_spectral_norm_raises_if_recomputed() -> None:
    """Spectral norm raises StageError under methods that recompute and trains under the others."""
    for method in methods.ALL:
        net = network(spectral)
        if method in RECOMPUTING:
            with pytest.raises(StageError, match=r"gives another output when .* read no buffer that it writes"):
                trained(net, method, 2)
        else:
            trained(net, method)


def test_draws_in_another_thread_raise() -> None:
    """Random draws in another thread raise StageError under methods that recompute."""

    class Drawing(nn.Module):
        """A function that lets another thread draw at the first evaluation."""

        threads: Sequence[Any] = (True,)

        def forward(self, x: Tensor) -> Tensor:
            if self.threads:
                thread = threading.Thread(target=torch.rand, args=(7,))
                thread.start()
                thread.join()
                self.threads = ()
            return F.dropout(x, 0.5)

    for method in RECOMPUTING:
        with pytest.raises(StageError, match="or another thread draws from torch's global generator"):
            trained(network(lambda f: nn.Sequential(f, Drawing())), method, 2)


class WritesInput(nn.Module):
    def __init__(self, f: nn.Module, kind: str) -> None:
        super().__init__()
        self.f, self.kind = f, kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "data":
            x.data.clamp_(-0.1, 0.1)
        else:
            x.detach().numpy()[...] *= 0.5
        y: Tensor = self.f(x)
        return y


@pytest.mark.parametrize("kind", ["data", "numpy"])
def test_untracked_writes_to_input_raise(kind: str) -> None:
    """Writes to the input that autograd does not track raise StageError under every method."""
    for method in methods.ALL:
        with pytest.raises(StageError, match=r"stage 1: WritesInput writes to its input .* clone the input first"):
            trained(network(functools.partial(WritesInput, kind=kind)), method, 2)


class Listed(nn.Module):
    """A module with parameters in attributes that nn.Module does not search."""

    def __init__(self, f: nn.Module, kind: str) -> None:
        super().__init__()
        self.f, self.kind = f, kind
        self.layers = [nn.Linear(4, 4).double()]
        self.raw = {"w": torch.ones(4, dtype=torch.float64, requires_grad=True)}

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.layers[0](x) if self.kind == "list" else x * self.raw["w"])


def closure_of(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: F.cross_entropy(module(output), target)


def test_unregistered_parameters_raise() -> None:
    """A parameter that no module has registered raises a StageError that names its attribute."""
    for method in methods.ALL:
        for kind, place in (("list", "attribute layers"), ("dict", "attribute raw")):
            with pytest.raises(StageError, match=rf"stage 1: Listed depends on a tensor of shape .*{place} of"):
                trained(network(functools.partial(Listed, kind=kind)), method, 2)
        net = network()
        net[-1] = HeadStage(net[-1].function, closure_of(nn.Linear(2, 2).double()))
        p = made(net, method)
        with pytest.raises(StageError, match=r"stage 3: Sequential depends on a tensor .*attribute loss of HeadStage"):
            step(p, 8)


class ReadsParameter(nn.Module):
    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f
        self.scale = nn.Parameter(torch.ones(4))
        self.parameters_of_old = [self.scale]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(x * self.parameters_of_old[0])
        return y


def test_parameters_read_past_module_are_exact_or_raise() -> None:
    """Parameters read past their module raise where weights are replaced, and otherwise equal autograd."""

    def net() -> list[Stage]:
        stages = network(ReadsParameter)
        for stage in stages[1:3]:
            stage.function.parameters_of_old = [stage.function.scale]
        return stages

    for method in methods.ALL:
        if method in REPLACING:
            with pytest.raises(StageError, match=r"parameter residual\.scale is read past the module"):
                trained(net(), method, 3)
        else:
            assert_same(gradients(net(), method), plain_gradients(net(), batches(6)))


class Keeps(nn.Module):
    """A module that keeps its output for another stage."""

    def __init__(self, module: nn.Module, store: dict[str, Tensor]) -> None:
        super().__init__()
        self.module, self.store = module, store

    def forward(self, x: Tensor) -> Any:
        y = self.module(x)
        self.store["h"] = y[0]
        return y


class Uses(nn.Module):
    def __init__(self, f: nn.Module, store: dict[str, Tensor]) -> None:
        super().__init__()
        self.f, self.store = f, store

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f(x + self.store["h"])
        return y


def test_tensors_that_bypass_pipeline_raise() -> None:
    """A tensor that reaches another stage outside the streams raises StageError."""
    for method in methods.ALL:
        net, store = network(), {}
        net[0] = BufferedStage(Keeps(net[0].function, store))
        net[2] = ReversibleStage(Uses(net[2].function, store))
        p = made(net, method)
        message = r"stage 2: .*(did not arrive as a stream; .*from stage 0 as one m|is not among its parameters)"
        with pytest.raises(StageError, match=message):
            step(p, 8)


class Aside(nn.Module):
    """A module that keeps a value of its input or output for another stage, or uses a value that another has kept."""

    def __init__(self, module: nn.Module, store: dict[str, Any], kind: str = "") -> None:
        super().__init__()
        self.module, self.store, self.kind = module, store, kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.module(x if self.kind else x + torch.as_tensor(self.store["h"]))
        if self.kind:
            self.store["h"] = KEPT[self.kind](x, y)
        return y


#: Values that a stage keeps of its input x and output y. Plain autograd has no gradient of the first six.
KEPT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "detached output": lambda x, y: y.detach(),
    "copy of the output": lambda x, y: y.detach().clone(),
    "detached input": lambda x, y: x.detach(),
    "number": lambda x, y: y.detach().mean().item(),
    "NumPy array": lambda x, y: y.detach().numpy(),
    "list": lambda x, y: y.detach().tolist(),
    "input": lambda x, y: x,
    "mean of the input": lambda x, y: x.mean(),
}
UNDIFFERENTIATED = list(KEPT)[:6]
NO_TENSOR = ("number", "NumPy array", "list")


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize(("keeper", "user"), [(1, 2), (2, 1)], ids=["upwards", "downwards"])
def test_values_that_bypass_pipeline_are_exact_or_raise(keeper: int, user: int, kind: str) -> None:
    """Values kept for another stage have the gradients of autograd or raise StageError."""

    def net() -> list[Stage]:
        stages, store = network(), {"h": 0.0}
        stages[keeper] = ReversibleStage(Aside(stages[keeper].function, store, kind))
        stages[user] = ReversibleStage(Aside(stages[user].function, store))
        return stages

    expected = {}
    if kind in UNDIFFERENTIATED:  # plain autograd cannot differentiate the others downwards
        expected = plain_gradients(net(), batches(6))
    elif keeper > user:
        return
    refused: dict[Method, str] = {}
    for method in methods.ALL:
        if kind in NO_TENSOR and method in KEEPING and method.pipelined:
            continue  # not detectable: no second evaluation, and no tensor is read
        try:
            found = gradients(net(), method)
        except StageError as error:
            refused[method] = str(error)
        else:
            assert_same(found, expected)
    for message in refused.values():
        assert f"stage {user}: Aside" in message
        assert "as a stream" in message
    pipelined = {method for method in methods.ALL if method.pipelined}
    # If the keeper is below the user, the keeper's input is a stream of the user too, so a forward reads it as one.
    arrives = kind == "detached input" and keeper < user
    assert refused.keys() >= (pipelined & set(RECOMPUTING) if kind in NO_TENSOR or arrives else pipelined)
    if kind not in UNDIFFERENTIATED:
        assert refused.keys() == set(methods.ALL)


def test_parameter_of_another_stage_raises() -> None:
    class Borrows(nn.Module):
        def __init__(self, lender: nn.Module) -> None:
            super().__init__()
            self.lenders = [lender]
            self.linear = nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(self.lenders[0](x))
            return y

    for method in methods.ALL:
        net = network()
        net[2] = ReversibleStage(Borrows(net[1].function))
        p = made(net, method)
        with pytest.raises(StageError, match=r"stage 2: Borrows depends on parameter residual\.\d\.\w+ of stage 1"):
            step(p, 8)


def _freeze(net: list[Stage]) -> None:
    net[1].function[0].weight.requires_grad_(False)


def _unfreeze(net: list[Stage]) -> None:
    net[1].function[2].bias.requires_grad_(True)


def _replace(net: list[Stage]) -> None:
    net[1].function[0].weight = nn.Parameter(torch.ones(4, 4).double())


def _assign(net: list[Stage]) -> None:
    net[1].load_state_dict(copy.deepcopy(net[1].state_dict()), assign=True)


def _add(net: list[Stage]) -> None:
    net[1].function[0].extra = nn.Parameter(torch.ones(4).double())


def _wrap(net: list[Stage]) -> None:
    net[1].function[2] = nn.Sequential(net[1].function[2], nn.Linear(4, 4).double())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_freeze, r"parameter residual\.0\.weight was frozen after the pipeline was made"),
        (_unfreeze, r"parameter residual\.2\.bias requires gradients, but was frozen"),
        (_replace, r"parameter residual\.0\.weight was replaced after the pipeline was made"),
        (_assign, r"parameter residual\.0\.weight was replaced after the pipeline was made"),
        (_add, r"its parameters \['weight', 'bias', 'extra'\] were 2 when the pipeline was made"),
        (_wrap, r"module '2' \(Linear\) was replaced after the pipeline was made"),
    ],
)
def test_parameter_changes_during_training_raise(change: Callable[[list[Stage]], None], message: str) -> None:
    """Freezing, adding or replacing parameters of an existing pipeline raises StageError."""
    for method in methods.ALL:
        for steps in (0, 7):
            net = network()
            net[1].function[2].bias.requires_grad_(False)
            p = made(net, method)
            for x, y in batches(steps):
                p.step(x, y)
            change(net)
            with pytest.raises(StageError, match=f"stage 1: {message}.*; which parameters are trained is fixed then"):
                step(p, 14)


def test_inspection_adds_evaluations_only_at_first() -> None:
    """Only inspection adds evaluations, and only in the first micro-batches."""
    calls = []

    class Counted(nn.Module):
        def __init__(self, f: nn.Module) -> None:
            super().__init__()
            self.f = f

        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            y: Tensor = self.f(x)
            return y

    counts = []
    for inspect in (False, True):
        for steps in (1, 4, 8, 9):
            calls.clear()
            p = made(network(Counted), methods.PETRA, inspect=inspect)
            for x, y in batches(steps):
                p.step(x, y)
            p.drain()
            counts.append(len(calls))
    plain, inspected = counts[:4], counts[4:]
    assert plain == [4 * 1, 4 * 4, 4 * 8, 4 * 9]
    more = [number - without for number, without in zip(inspected, plain, strict=True)]
    assert 0 < more[0] < more[1]
    assert more[2] == more[3], "only the first micro-batches are inspected"


class Operations(TorchDispatchMode):
    """A mode that counts operations on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counted[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_inspection_adds_no_operations_in_steady_state(method: Method) -> None:
    """The operations are equal, and every context manager and hook of the inspection is removed."""
    counts = []
    for inspect in (False, True):
        p = made(network(normed(plainly, nn.Dropout(0.2))), method, inspect=inspect)
        data = batches(24)
        for x, y in data[:12]:
            p.step(x, y)
        assert all(part._inspected is None for worker in p.workers for part in worker.parts)
        assert not any(module._forward_hooks for module in p.model.modules())
        with Operations() as operations:
            for x, y in data[12:]:
                p.step(x, y)
        counts.append(operations.counted)
    assert counts[0] == counts[1]
    assert counts[0].total() > 100


def test_inspection_changes_no_results() -> None:
    """Inspection restores buffers and generators."""
    for method in methods.ALL:
        net = network(normed(plainly, nn.Dropout(0.2)))
        for seed in (None, SEED):
            results = []
            for inspect in (False, True):
                torch.manual_seed(5)
                random.seed(5)
                results.append([trained(net, method, 8, inspect=inspect, seed=seed), torch.rand(1), random.random()])
            assert_bitwise_equal(*results)


def test_merged_stages_are_inspected_part_by_part() -> None:
    """The error about a merged stage names the module of the part."""
    net = network(functools.partial(Impure, kind="counter"))
    with pytest.raises(StageError, match=r"stage 1: Impure gives another output .* changes count"):
        trained([net[0], merge(net[1:3]), net[3]], methods.PETRA, 2)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_only_recomputing_blocks_are_marked(method: Method) -> None:
    """Only blocks that evaluate again in their backward are marked for careful differentiation."""
    for wrap in (plainly, Checkpointed, EvaluatedAgain):
        p = made(network(wrap), method)
        step(p, 14)
        watched = [part._watched_backwards for worker in p.workers for part in worker.parts]
        inner = 0 if wrap is plainly else math.inf
        assert watched == [0, inner, inner, 0]
