"""Test property 2: a user's module trains as with plain autograd, or the first micro-batches refuse it by name.

Every construct is tried with every method in float64. There are two references: a plain loop of PyTorch while no
gradient is late, and a twin of the network without the construct in a full pipeline. `errors.txt` has the refusals.
"""

import copy
import functools
import math
import random
import types
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from petra_core import BufferedStage, HeadStage, Stage, StageError, checkpoint, methods
from petra_core.delay import Average, PredictedWeights
from petra_core.methods import Method
from petra_core.models import DuplicateStreams
from petra_core.update_rule import UpdateRule
from tests.compare import assert_bitwise_equal, assert_close
from tests.constructs import aliased, buffer, checkpointed, closing, frozen, normed, sharing_frozen, vector
from tests.properties import assert_trains_as_plain_training, engine_gradients, plain_gradients
from tests.refused import IMPURE, past_the_streams, reading_data, reading_past_modules
from tests.toys import Wrap, computing
from tests.user_networks import RECOMPUTING, REPLACING, SEED, assert_same, batches, made, network, sgd, step, trained

KEEPING = tuple(method for method in methods.ALL if method.keeps_graph)


def gradients(stages: Sequence[Stage], method: Method) -> dict[str, Tensor]:
    """Return the pipeline's mean gradients of six micro-batches with constant weights."""
    return engine_gradients(stages, method, batches(6), 6, seed=SEED, inspect=True)


# --- constructs that train correctly -----------------------------------------------------------------------------

Make = Callable[[], list[Stage]]


class _EvaluatedAgain(torch.autograd.Function):
    """A function whose backward evaluates again.

    Without `weights` it calls `backward`, like the reversible blocks of RevTorch and memcnn. Otherwise it returns their
    gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: nn.Module, *weights: Tensor) -> Tensor:
        ctx.function, ctx.weights = function, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        if not ctx.weights:
            y.backward(gradients[0])
            return x.grad, None
        of_x, *of_weights = torch.autograd.grad(y, [x, *ctx.function.parameters()], gradients[0])
        return of_x, None, *of_weights


evaluated_again = computing(lambda m, x: _EvaluatedAgain.apply(x, m.f))


def restoring(m: Any, x: Tensor) -> Tensor:
    """Draw as in the forward of an inner backward, which is the last one, like the reversible blocks of reformers."""
    if not torch.is_grad_enabled():
        m.state = torch.get_rng_state()
        return m.f(x)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(m.state)
        return m.f(x)


class _ScaledByAttribute(torch.autograd.Function):
    """Multiplication by an attribute of a module, which the backward reads again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Any) -> Tensor:
        ctx.module = module
        return x * module.scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.module.scale, None


def scaled_by_attribute(m: Any, x: Tensor) -> Tensor:
    m.scale = x.detach().abs().mean()
    return _ScaledByAttribute.apply(m.f(x), m)  # type: ignore[no-any-return]  # torch gives it no type


def plainly(f: nn.Module) -> nn.Module:
    return f


def dropping(f: nn.Module) -> nn.Module:
    return nn.Sequential(f, nn.Dropout(0.3))


def tied(untie: bool = False) -> Wrap:
    """Return a function around one weight that is used twice, registered under two names; without them if untied."""

    def twice(m: Any, x: Tensor) -> Tensor:
        h = torch.tanh(m.first(x))
        return m.f(F.linear(h, m.first.weight, m.second.bias) if untie else m.second(h))

    def wrap(f: nn.Module) -> nn.Module:
        module = computing(twice, first=lambda: nn.Linear(4, 4), second=lambda: nn.Linear(4, 4))(f)
        module.second.weight = module.first.weight
        return module

    return wrap


def differentiated(m: Any, x: Tensor) -> Tensor:
    """Return a gradient in the forward."""
    with torch.enable_grad():
        z = x if x.requires_grad else x.detach().requires_grad_()
        (force,) = torch.autograd.grad(m.f(z).tanh().sum(), z, create_graph=True)
    return force


def strained(m: Any, x: Tensor) -> Tensor:
    """Differentiate with respect to a tensor that every evaluation creates, as for the stress of a crystal."""
    with torch.enable_grad():
        strain = torch.zeros(4, dtype=x.dtype, requires_grad=True)
        (stress,) = torch.autograd.grad(m.f(x * (1 + strain)).tanh().sum(), strain, create_graph=True)
    return x * stress


def above_frozen_embedding() -> list[Stage]:
    """Return a network with a frozen embedding whose output requires a gradient, as in `peft`."""
    net, table = network(), nn.Embedding(2, 4).requires_grad_(False)
    table.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
    embedding = computing(lambda m, x: m.f(m.table((x > 0).long())[:, 0]), table=lambda: table)
    return [BufferedStage(embedding(nn.Sequential(nn.Linear(4, 4), DuplicateStreams()))).double(), *net[1:]]


def cached(cache: dict[int, Tensor], m: Any, x: Tensor) -> Tensor:
    """Read a constant, which the first block to run has created."""
    if x.shape[1] not in cache:
        cache[x.shape[1]] = torch.arange(x.shape[1], dtype=x.dtype).cos()
    return m.f(x * cache[x.shape[1]])


def hooked(f: nn.Module) -> nn.Module:
    f.register_full_backward_hook(lambda _module, of_inputs, _of_outputs: (2 * of_inputs[0],))
    return f


def hooked_input(m: Any, x: Tensor) -> Tensor:
    """Register a hook on the input, whose gradient in a coupling is that of both streams that read it."""
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient.tanh())
    return m.f(x)


def randomly_scaled(m: Any, x: Tensor) -> Tensor:
    """Scale by random numbers of a private generator, which every forward seeds."""
    return m.f(x * torch.rand(4, generator=torch.Generator().manual_seed(0), dtype=x.dtype))


class OwnNorm(nn.BatchNorm1d):
    """A BatchNorm that tracks its statistics in another forward, like a synchronised one."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        mean = x.mean(0) if self.training else self.running_mean
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)
        return x - mean


def patched(f: nn.Module) -> nn.Module:
    """Return a module with a BatchNorm whose forward is replaced in the object."""
    norm = nn.BatchNorm1d(4, affine=False)
    norm.forward = types.MethodType(OwnNorm.forward, norm)
    return nn.Sequential(f, norm)


class LateBuffer(nn.Module):
    """A running mean whose buffer has no value, or does not exist, before the first forward."""

    def __init__(self, function: nn.Module, *, registered: bool) -> None:
        super().__init__()
        self.function = function
        if registered:
            self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.function(x - self.get_buffer("mean"))  # type: ignore[no-any-return]  # a module
        with torch.no_grad():
            before = self._buffers.get("mean")
            mean = x.mean(0) if before is None else 0.9 * before + 0.1 * x.mean(0)
            if "mean" in self._buffers:
                self._buffers["mean"] = mean
            else:
                self.register_buffer("mean", mean)
        return self.function(x - x.mean(0))  # type: ignore[no-any-return]  # a module


def remembering(m: Any, x: Tensor) -> Tensor:
    """Write one buffer in place, replace another, and use a third that the graph saves."""
    if m.training:
        m.count += 1
        m.mean = 0.5 * m.mean + 0.5 * x.detach().mean()
    return torch.tanh(m.f(x) * m.scale) * m.mask


def with_an_attribute() -> nn.Parameter:
    parameter = vector()
    parameter.scale = 2.0
    return parameter


READING_THE_CLASS = computing(lambda m, x: m.f(x) + m.f.get_parameter("0.bias"))
READING_ATTRIBUTES = computing(lambda m, x: m.f(x * m.w * getattr(m.w, "scale", 1.0)), w=with_an_attribute)


class FoldedWeight(nn.Module):
    """A module that keeps a folded weight in evaluation mode, and forgets it in `train`."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.folded: Tensor | None = None

    def train(self, mode: bool = True) -> "FoldedWeight":
        self.folded = None if mode else self.folded
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.tanh(self.linear.weight)
        if not self.training:
            self.folded = weight.detach() if self.folded is None else self.folded
            weight = self.folded
        return self.function(F.linear(x, weight, self.linear.bias))  # type: ignore[no-any-return]  # a module


def masked(make: Callable[[Tensor], Tensor]) -> Wrap:
    """Return a function around a constant that all blocks share, made from the first input."""
    constants: list[Tensor] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        if not constants:
            constants.append(make(x))
        return m.f(x * constants[0])

    return computing(forward)


#: Operations that read only dtype and shape of an input, so that their result is no tensor of the block.
CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda x: torch.full((4,), 0.5).to(x),
    "type_as": lambda x: torch.full((4,), 0.5).type_as(x),
    "new_full": lambda x: x.new_full((4,), 0.5),
    "ones_like": lambda x: torch.ones_like(x) * 0.5,
}


class Workspace(torch.autograd.Function):
    """Multiplication by a weight, with gradients in memory that every backward uses again."""

    spaces: tuple[Tensor, Tensor]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, spaces: tuple[Tensor, Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.spaces = spaces
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        of_input, of_weight = ctx.spaces
        torch.mul(gradients[0], weight, out=of_input)
        torch.sum(gradients[0] * x, 0, out=of_weight)
        return of_input, of_weight, None


def in_a_workspace(*, shared: bool) -> list[Stage]:
    """Return buffered stages of one stream with a scale, whose gradients are in one workspace or in new memory."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if m.spaces is None or not shared:
            m.spaces = (torch.empty_like(x), torch.empty_like(m.weight))
        return m.f(Workspace.apply(x, m.weight, m.spaces))

    torch.manual_seed(0)
    scaled = computing(forward, weight=vector, spaces=lambda: None)
    blocks = [scaled(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(2)]
    stages = [BufferedStage(nn.Linear(3, 4)), *map(BufferedStage, blocks), HeadStage(nn.Linear(4, 2))]
    return [stage.double() for stage in stages]


class Temperature(nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.count = nn.Parameter(torch.ones(())), nn.Buffer(torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.count += 1
        return F.cross_entropy(output * self.temperature, target)


def ending(wrap: Wrap, loss: Callable[[nn.Module], Callable[..., Any]] = lambda module: F.cross_entropy) -> list[Stage]:
    """Return the network with a wrapped head, and a loss made of the head's module."""
    net = network()
    return [*net[:-1], HeadStage(wrap(net[-1].function), loss(net[-1].function)).double()]


def with_norm(module: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: F.cross_entropy(output, target) + 0.1 * module[1].weight.norm()


def norm_beside_output(m: Any, streams: Any) -> Tensor:
    return torch.cat([m.f(streams), m.f[1].weight.norm().expand(len(streams[0]), 1)], 1)


def norm_of_output(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :2], target) + 0.1 * output[0, 2]


def around_checkpoints() -> list[Stage]:
    net = ending(checkpointed)
    return [BufferedStage(checkpointed(net[0].function)), *net[1:]]


def with_views() -> list[Stage]:
    """Return a network with a stage that changes one stream and passes on a view of the other."""
    passing = computing(lambda m, streams: (m.f(streams[0]), streams[1].view(streams[1].shape)))
    net = network()
    return [net[0], BufferedStage(passing(nn.Linear(4, 4))).double(), *net[1:]]


def returning_a_constant() -> list[Stage]:
    """Return a network with a hook that returns a tensor that it keeps."""
    net, constant = network(), torch.full((4, 4), 0.01, dtype=torch.float64)
    net[1].get_parameter("residual.0.weight").register_hook(lambda _: constant)
    return net


def around(wrap: Wrap) -> Make:
    """Return a function that makes the network with `wrap` around its residual functions."""
    return lambda: network(wrap)


ALIASED = ("view of a parameter", "parameter", "buffer", "memory of an attribute", "both the same", "halves")
#: A network with a construct, and its twin without it, for which None stands if plain autograd is the only reference.
CONSTRUCTS: dict[str, tuple[Make, Make | None]] = {
    "checkpoint": (around(checkpointed), network),
    "checkpoint of BatchNorm": (around(normed(checkpointed)), around(normed(plainly))),
    "checkpoint of BatchNorm and more": (around(normed(checkpointed, nn.Tanh())), around(normed(plainly, nn.Tanh()))),
    "checkpoint of dropout": (around(lambda f: checkpointed(dropping(f))), around(dropping)),
    "checkpoint of checkpoint": (around(lambda f: checkpointed(checkpointed(f))), network),
    "inner backward": (around(evaluated_again), network),
    "inner backward of dropout": (
        around(lambda f: evaluated_again(computing(restoring)(dropping(f)))),
        around(dropping),
    ),
    "backward that reads an attribute": (
        around(computing(scaled_by_attribute)),
        around(computing(lambda m, x: m.f(x) * x.detach().abs().mean())),
    ),
    "gradients of weights by an inner graph": (
        around(computing(lambda m, x: _EvaluatedAgain.apply(x, m.f, *m.f.parameters()))),
        network,
    ),
    "checkpoint of stem and head": (around_checkpoints, network),
    **{
        f"aliased outputs: {kind}": (
            functools.partial(aliased, kind, copied=False),
            functools.partial(aliased, kind, copied=True),
        )
        for kind in ALIASED
    },
    "stage that returns a view": (with_views, None),
    "frozen module of two stages": (sharing_frozen, None),
    "view of a parameter": (
        around(computing(lambda m, x: m.bias.expand_as(x), bias=vector)),
        around(computing(lambda m, x: m.bias.expand_as(x).clone(), bias=vector)),
    ),
    "tied": (around(tied()), around(tied(untie=True))),
    "loss with weights of the head": (
        lambda: ending(plainly, with_norm),
        lambda: ending(computing(norm_beside_output), lambda _: norm_of_output),
    ),
    "gradients in a workspace": (lambda: in_a_workspace(shared=True), lambda: in_a_workspace(shared=False)),
    "LSTM": (
        around(computing(lambda m, x: m.f(m.lstm(x[:, None])[0][:, 0]), lstm=lambda: nn.LSTM(4, 4, batch_first=True))),
        None,
    ),
    "weight_norm": (around(lambda f: nn.Sequential(f, parametrizations.weight_norm(nn.Linear(4, 4)))), None),
    "DataParallel": (around(nn.DataParallel), None),
    "differentiates in its forward": (around(computing(differentiated)), None),
    "differentiates by a new tensor": (around(computing(strained)), None),
    "output that requires a gradient": (above_frozen_embedding, None),
    "parameter made of a frozen weight": (
        around(computing(lambda m, x: m.f(x * nn.Parameter(m.w[None])), w=frozen)),
        None,
    ),
    "buffer that requires a gradient": (
        around(computing(lambda m, x: m.f(x) + m.zero.requires_grad_(), zero=buffer(0.0))),
        None,
    ),
    "closure over its module": (around(closing), network),
    "a cache of constants": (around(computing(functools.partial(cached, {}))), None),
    "full backward hook": (around(hooked), None),
    "hook that returns a constant": (returning_a_constant, None),
    "hook of an input": (around(computing(hooked_input)), None),
    "private generator that every forward seeds": (around(computing(randomly_scaled)), None),
    "global generator that every forward seeds": (
        around(computing(lambda m, x: m.f(x * torch.rand(4, dtype=x.dtype, generator=torch.manual_seed(0))))),
        None,
    ),
    "norm with another forward": (around(lambda f: nn.Sequential(f, OwnNorm(4, affine=False))), None),
    "norm with a replaced forward": (around(patched), None),
    "buffer without a value": (around(functools.partial(LateBuffer, registered=True)), None),
    "buffer registered later": (around(functools.partial(LateBuffer, registered=False)), None),
    "buffers that are written and replaced": (
        around(computing(remembering, count=buffer(0), mean=buffer(0.0), mask=buffer(2, 2, 2, 2), scale=vector)),
        None,
    ),
    "class of a parameter": (around(READING_THE_CLASS), None),
    "attribute of a parameter": (
        around(READING_ATTRIBUTES),
        None,
    ),
    "folded weight in evaluation": (around(FoldedWeight), None),
    **{f"constant of {name}": (around(masked(make)), None) for name, make in CONSTANTS.items()},
}


#: Methods that invert with current and with stashed weights, and that keep graphs on stashed weights. Other methods
#: evaluate stages as these do or more simply, so that each construct is tried with one of them in turn.
MAIN = (methods.PETRA, methods.APPROXIMATE_INPUTS, methods.DELAYED_GRADIENTS)
OTHERS = [method for method in methods.ALL if method not in MAIN]
TRIED = [
    (construct, method)
    for number, construct in enumerate(CONSTRUCTS)
    for method in (*MAIN, OTHERS[number % len(OTHERS)])
]


@pytest.mark.parametrize(("construct", "method"), TRIED, ids=str)
def test_construct_trains_as_in_plain_pytorch_and_as_its_twin(construct: str, method: Method) -> None:
    """Losses, weights and buffers equal those of a plain loop, and in a full pipeline those of the twin."""
    make, twin = CONSTRUCTS[construct]
    first = method is methods.PETRA  # under which the twin, too, is compared with the plain loop
    alone = not method.pipelined
    if "dropout" not in construct and (twin is None or first):  # masks of a seed are other ones than in a plain loop
        # A plain loop updates the statistics of a checkpointed BatchNorm twice.
        plain = make() if twin is None or "head" in construct else twin()
        data = batches(6 if method.double_buffered else 4)
        assert_trains_as_plain_training(
            make(), method, 2, data, optimizer=sgd, plain=plain, inspect=not twin and (first or alone)
        )
    if alone and twin is None:
        return  # a longer training would be of the same kind
    count = 12 if method.double_buffered else 10
    found = trained(make(), method, count)  # it is inspected and not refused
    if twin is not None:
        expected = trained(twin(), method, count, inspect=False)
        assert_same(found, expected, 0.0 if "aliased" in construct else 1e-10)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
@pytest.mark.parametrize("rule", [Average(), PredictedWeights()], ids=str)
def test_recomputing_constructs_train_under_delay_rules(rule: UpdateRule, method: Method) -> None:
    """Recomputing constructs train as plain ones under rules that replace weights."""
    expected = trained(network(), method, delay=[rule], inspect=False)
    for wrap in (checkpointed, evaluated_again):
        assert_same(trained(network(wrap), method, delay=[rule]), expected)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
@pytest.mark.parametrize("rule", [Average(), PredictedWeights()], ids=str)
def test_weights_of_rules_are_parameters_with_attributes(rule: UpdateRule, method: Method) -> None:
    """A module asks for the class of a weight, or reads an attribute that the user has set on it."""
    for wrap, plain in (
        (READING_ATTRIBUTES, computing(lambda m, x: m.f(x * m.w * 2.0), w=vector)),
        (READING_THE_CLASS, computing(lambda m, x: m.f(x) + m.f[0].bias)),
    ):
        assert_same(trained(network(wrap), method, delay=[rule]), trained(network(plain), method, delay=[rule]))


@pytest.mark.parametrize("method", [method for method in REPLACING if method.pipelined], ids=str)
def test_loaded_weights_are_parameters_with_attributes(method: Method, tmp_path: Path) -> None:
    """A file need not contain the attributes: they are those of the parameters of the loading pipeline."""
    for wrap in (READING_ATTRIBUTES, READING_THE_CLASS):
        p, resumed = made(network(wrap), method), made(network(wrap), method)
        step(p, 8)
        checkpoint.save(tmp_path / "state.pt", p.state_dict())
        resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt"))
        step(p, 8)
        step(resumed, 8)
        assert_bitwise_equal(resumed.state_dict(), p.state_dict())


@pytest.mark.parametrize("construct", ["inner backward of dropout", "backward that reads an attribute"])
@pytest.mark.parametrize("method", [method for method in KEEPING if method.pipelined], ids=str)
def test_resumed_graphs_have_the_attributes_of_their_forwards(construct: str, method: Method) -> None:
    """A resume records several graphs in sequence, each of which sets the attributes."""
    assert_resume_is_bitwise(CONSTRUCTS[construct][0], method, 8)


@pytest.mark.parametrize("method", [method for method in KEEPING if method.pipelined], ids=str)
def test_resumed_graph_of_the_first_forward_has_its_buffers(method: Method) -> None:
    """A function multiplies by the number of its forwards, which a buffer counts."""

    def counted(m: Any, x: Tensor) -> Tensor:
        m.count = m.count + m.training
        return m.f(x) * m.count

    assert_resume_is_bitwise(around(computing(counted, count=buffer(0.0))), method, 1)


def assert_resume_is_bitwise(make: Callable[[], list[Stage]], method: Method, before: int) -> None:
    """Train, save and load after a number of micro-batches, and compare the ends."""
    p, resumed = made(make(), method), made(make(), method)
    step(p, before)
    resumed.load_state_dict(copy.deepcopy(p.state_dict()))
    step(p, 8)
    step(resumed, 8)
    assert_bitwise_equal(resumed.state_dict(), p.state_dict())


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_loss_parameters_are_trained(method: Method) -> None:
    """A parameter of the loss trains as one of the head, and inspection does not update the loss's buffer."""
    scaled = computing(
        lambda m, streams: m.f(streams) * m.temperature, temperature=lambda: nn.Parameter(torch.ones(()))
    )
    net, twin = ending(plainly, lambda _: Temperature()), ending(scaled)
    step(made(net, method), 14)
    step(made(twin, method, inspect=False), 14)
    temperature = net[-1].loss.temperature
    assert_close(temperature, twin[-1].function.temperature)
    assert temperature != 1
    assert net[-1].loss.count == 14


@pytest.mark.parametrize("method", [m for m in methods.ALL if m.pipelined and not m.double_buffered], ids=str)
def test_stages_that_return_views_train_with_predicted_weights(method: Method) -> None:
    """Weight prediction once failed with an AssertionError."""
    assert trained(with_views(), method, delay=[PredictedWeights()])["losses"].isfinite().all()


def scaled_later(m: Any, x: Tensor) -> Tensor:
    if len(x) > 5:
        m.scale = x.detach().abs().mean()
    return _ScaledByAttribute.apply(m.f(x), m)  # type: ignore[no-any-return]  # torch gives it no types


#: Constructs that begin with larger micro-batches, and their twins.
LATE: dict[str, tuple[Wrap, Wrap]] = {
    "inner backward": (computing(lambda m, x: _EvaluatedAgain.apply(x, m.f) if len(x) > 5 else m.f(x)), plainly),
    "backward that reads an attribute": (
        computing(scaled_later, scale=lambda: 1.0),
        computing(lambda m, x: m.f(x) * (x.detach().abs().mean() if len(x) > 5 else 1.0)),
    ),
}


@pytest.mark.parametrize("construct", LATE)
@pytest.mark.parametrize("method", [methods.PETRA, *(m for m in KEEPING if m.pipelined)], ids=str)
def test_constructs_may_begin_with_another_shape(construct: str, method: Method) -> None:
    """The inner gradients and the earlier attributes were once lost after the first backwards."""
    models = []
    for wrap in LATE[construct]:
        p = made(network(wrap), method)
        step(p, 8)
        p.drain()
        for x, y in batches(8, size=7):
            p.step(x, y)
        p.drain()
        models.append([*p.model.parameters()])
    assert_close(*models, 1e-10)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_output_may_be_a_parameter_at_times(method: Method) -> None:
    """A condition that is dropped after the first micro-batches was once changed by updates while it was in flight."""
    results = []
    for copied in (False, True):

        def forward(m: Any, x: Tensor, copied: bool = copied) -> tuple[Tensor, Tensor]:
            dropped = m.nothing.clone() if copied else m.nothing
            return m.f(x), dropped if 0.5 < x.sum() < 1 else m.f(x).tanh()  # not in the first four micro-batches

        torch.manual_seed(0)
        first = computing(forward, nothing=lambda: nn.Parameter(torch.ones(5, 4)))(nn.Linear(3, 4))
        mixing = computing(lambda m, streams: m.f(streams[0] * streams[1]))(nn.Linear(4, 4))
        stages = [*map(BufferedStage, (first, mixing, nn.Tanh())), HeadStage(nn.Linear(4, 2))]
        results.append(trained([stage.double() for stage in stages], method))
    assert_bitwise_equal(*results)


def test_frozen_weights_may_be_in_bfloat16() -> None:
    """An adapter of a model that is kept in bfloat16 was once refused."""
    adapting = computing(lambda m, x: m.f(x) + F.linear(x.bfloat16(), m.weight).to(x.dtype))
    net = network(adapting)
    for stage in net[1:3]:
        stage.function.weight = nn.Parameter(torch.eye(4, dtype=torch.bfloat16), requires_grad=False)
    assert_trains_as_plain_training(net, methods.DELAYED_GRADIENTS, 2, batches(8), optimizer=sgd)


def test_message_does_not_share_memory_with_buffer() -> None:
    def forward(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h = m.f(x)
        m.mean.mul_(0.5).add_(h.detach(), alpha=0.5)
        return h, m.mean

    first = computing(forward, mean=lambda: nn.Buffer(torch.zeros(5, 4)))(nn.Linear(3, 4))
    p = made([BufferedStage(first).double(), *network()[1:]], methods.DELAYED_GRADIENTS)
    step(p, 3)
    for message in p.workers[1].from_below:
        assert message.streams[1].untyped_storage().data_ptr() != first.mean.untyped_storage().data_ptr()


@pytest.mark.parametrize("method", [m for m in methods.ALL if m not in REPLACING], ids=str)
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_scripted_functions_train_with_current_weights(method: Method) -> None:
    """A residual function that is itself a module of torch.jit was once refused."""
    assert_trains_as_plain_training(
        network(normed(torch.jit.script)), method, 2, batches(8), optimizer=sgd, plain=network(normed(plainly))
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of the compiler
def test_compiled_functions_and_conditions_train() -> None:
    """The compiler traces the mode that inspects reads, and the backward of a condition runs in another mode."""
    fused = torch.compile(lambda x: x.tanh() * 2, backend="eager", fullgraph=True)
    choosing = computing(lambda m, x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (fused(m.f(x)),)))
    assert_trains_as_plain_training(network(choosing), methods.PETRA, 2, batches(8), optimizer=sgd)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_functions_may_set_modes(method: Method) -> None:
    """A function that puts a module into evaluation mode in every forward was once refused with micro-batches."""
    setting = computing(lambda m, x: m.f[3].eval() and m.f(x))
    fixed = computing(lambda m, x: m.f(x))
    net = network(normed(fixed))
    for stage in net[1:3]:
        stage.function.f[3].eval()
    assert_bitwise_equal(trained(network(normed(setting)), method), trained(net, method, inspect=False))


class _Noisy(torch.autograd.Function):
    """The identity, with noise in its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * torch.rand_like(gradients[0])


@pytest.mark.parametrize("method", [*MAIN, methods.BACKPROPAGATION, methods.PAREPROP], ids=str)
def test_noise_of_a_backward_comes_from_the_stream_of_its_stage(method: Method) -> None:
    """With a seed, results do not depend on torch's global generator, which other stages and loaders draw from."""
    noisy = computing(lambda m, x: _Noisy.apply(m.f(x)))
    results = []
    for number in (1, 2):
        torch.manual_seed(number)
        net = network(noisy)
        torch.manual_seed(number)
        results.append(trained(net, method, inspect=number == 1))
    assert_bitwise_equal(*results)


# --- hooks and gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "delay"),
    [
        *((method, []) for method in methods.ALL),
        *((method, [rule]) for method in (methods.PETRA, methods.DSP) for rule in (Average(), PredictedWeights())),
    ],
    ids=lambda value: ", ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_parameter_hooks_run_once_per_backward(method: Method, delay: list[UpdateRule]) -> None:
    """A hook of a parameter runs once per backward and can replace the gradient."""
    net = network()
    masked = net[1].function[0].weight
    before, seen = masked.detach().clone(), []
    masked.register_hook(lambda gradient: seen.append(1) or gradient * 0)
    net[2].function[0].weight.register_hook(lambda gradient: None)
    p = made(net, method, delay=delay)
    step(p, 14)
    p.drain()
    assert len(seen) == 14
    assert_bitwise_equal(masked.detach(), before)


@pytest.mark.parametrize("method", MAIN, ids=str)
def test_earlier_gradients_do_not_affect_training(method: Method) -> None:
    """Gradients that parameters had before the pipeline was made do not affect training."""
    net = network()
    expected = trained(copy.deepcopy(net), method, inspect=False)
    for x, y in batches(2):
        F.cross_entropy(nn.Sequential(*net)(x), y).backward()
    assert_bitwise_equal(trained(net, method), expected)


@pytest.mark.parametrize(
    ("method", "k"), [(methods.PETRA, 1), *((method, 6 if method.double_buffered else 4) for method in methods.ALL)]
)
def test_external_gradient_change_raises(method: Method, k: int) -> None:
    """The sums of gradients are not in `.grad`, so clearing it changes nothing."""
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


@pytest.mark.parametrize("kind", ["python", "numpy_global", "numpy_own", "torch_own", "counter"])
def test_impure_functions_train_if_they_are_not_evaluated_again(kind: str) -> None:
    random.seed(0)  # with these seeds no draw is above 0.999
    np.random.seed(0)
    for method in KEEPING:
        assert_same(gradients(network(IMPURE[kind]), method), plain_gradients(network(), batches(6)))


def test_buffer_that_a_later_forward_writes_raises_with_stage_and_remedy() -> None:
    """A kept graph needs a buffer that the next forward writes in place, which autograd refuses without a name."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
        step(made(network(IMPURE["buffer"]), methods.DELAYED_GRADIENTS), 12)
    remedy, place = error.value.__notes__
    assert remedy.endswith("replace such a buffer (self.mean = new_mean) instead")
    assert place == "in backward 1 of stage 2"


@pytest.mark.parametrize("make", [reading_past_modules, reading_data])
def test_parameters_read_past_modules_are_exact_if_weights_are_not_replaced(make: Make) -> None:
    for method in set(methods.ALL) - set(REPLACING):
        assert_same(gradients(make(), method), plain_gradients(make(), batches(6)))


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
        return past_the_streams(keeper, user, KEPT[kind])

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
        assert f"stage {user}: Computing" in message
        assert "as a stream" in message
    pipelined = {method for method in methods.ALL if method.pipelined}
    # If the keeper is below the user, the keeper's input is a stream of the user too, so a forward reads it as one.
    arrives = kind == "detached input" and keeper < user
    assert refused.keys() >= (pipelined & set(RECOMPUTING) if kind in NO_TENSOR or arrives else pipelined)
    if kind not in UNDIFFERENTIATED:
        assert refused.keys() == set(methods.ALL)


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
        data = batches(18)
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
                results.append(
                    [trained(copy.deepcopy(net), method, 8, inspect=inspect, seed=seed), torch.rand(1), random.random()]
                )
            assert_bitwise_equal(*results)


@pytest.mark.parametrize("method", MAIN, ids=str)
def test_only_recomputing_blocks_are_marked(method: Method) -> None:
    """Only blocks that evaluate again in their backward are marked for careful differentiation."""
    for wrap in (plainly, checkpointed, evaluated_again):
        p = made(network(wrap), method)
        step(p, 14)
        watched = [part.watched_backwards for worker in p.workers for part in worker.parts]
        inner = 0 if wrap is plainly else math.inf
        assert watched == [0, inner, inner, 0]
