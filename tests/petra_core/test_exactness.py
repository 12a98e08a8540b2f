"""Test property 1: with one micro-batch at a time, gradients equal autograd's for every kind of stage and every k."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, methods, models
from petra_core.methods import Method
from petra_core.tape import as_streams
from reproduce.models.invertible_revnet import invertible_revnet
from tests import toys
from tests.compare import assert_close
from tests.properties import EXACT, assert_trains_as_plain_training, engine_gradients, plain_gradients

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize(
    ("stages", "k"), [(1, 2), (2, 1), (3, 5), (4, 1), (5, 3), (6, 2), ((2, 4), 2), ((3, 2, 1), 2), ((6,), 2)], ids=str
)
def test_gradients_equal_autograd(stages: int | tuple[int, ...], k: int, method: Method) -> None:
    """An int is a number of single stages; a tuple merges six stages into groups."""
    net, data = toys.network(stages if isinstance(stages, int) else 6), toys.batches(k)
    grouped = net if isinstance(stages, int) else models.group(net, stages)
    assert_close(engine_gradients(grouped, method, data, k), plain_gradients(net, data), 1e-10)


def by_block(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one vector per block, since a bias before BatchNorm has gradient zero with an arbitrary rounding error."""
    parts_of: dict[str, list[Tensor]] = {}
    for name, gradient in gradients.items():
        parts_of.setdefault(name.partition(".")[0], []).append(gradient.flatten())
    return {block: torch.cat(parts) for block, parts in parts_of.items()}


@pytest.mark.parametrize(
    ("family", "depth", "k"),
    [
        *((models.chain, 0, 1), (models.chain, 11, 2)),
        *((models.revnet, 18, 2), (models.revnet, 34, 1), (models.revnet, 50, 3)),
        *((models.resnet, 18, 1), (models.resnet, 50, 2)),
        *((invertible_revnet, 18, 2), (invertible_revnet, 50, 1)),
    ],
)
def test_petra_without_updates_equals_autograd(family: Callable[..., list[Stage]], depth: int, k: int) -> None:
    """Without updates, PETRA has the gradients of plain autograd for every convolutional model."""
    torch.manual_seed(depth)
    size = {"channels": 3, "stem_stride": 2} if family is models.chain else {"width": 3}
    net = [stage.double() for stage in family(depth, num_classes=toys.CLASSES, **size)]
    data = [(nn.functional.interpolate(x, (16, 16)), y) for x, y in toys.batches(k)]
    expected = by_block(plain_gradients(net, data))
    assert all(gradient.abs().max() > 0 for gradient in expected.values()), "a block has no gradient to compare with"
    assert_close(by_block(engine_gradients(net, methods.PETRA, data, k)), expected, 1e-9)


class Fourier(nn.Module):
    """A map from [batch, 3, 6, 6] to a complex stream of coefficients and a boolean stream, |coefficients| > 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(3, 6, 6).double()), nn.Parameter(torch.rand(5).double())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        coefficients = torch.fft.fft2(x * self.scale + self.shift.sum())
        return coefficients, coefficients.abs() > 1


class Magnitudes(nn.Module):
    """A map from the streams of `Fourier` to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(108, toys.CLASSES).double()

    def forward(self, streams: tuple[Tensor, Tensor]) -> Tensor:
        logits: Tensor = self.linear(torch.where(streams[1], streams[0].abs(), streams[0].real).flatten(1))
        return logits


def spectral() -> list[Stage]:
    torch.manual_seed(0)
    return [BufferedStage(Fourier()), HeadStage(Magnitudes())]


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_complex_and_boolean_streams_equal_autograd(method: Method, k: int) -> None:
    """Gradients through complex and boolean streams and of expanded tensors equal autograd's."""
    net, data = spectral(), toys.batches(k)
    assert_close(engine_gradients(net, method, data, k), plain_gradients(net, data), 1e-10)


class Opaque(torch.autograd.Function):
    """The identity, without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()


class Input(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Opaque.apply(x)  # type: ignore[no-any-return]  # a tensor


@pytest.mark.parametrize("method", EXACT, ids=str)
def test_input_of_network_is_not_differentiated(method: Method) -> None:
    """The network may begin with an operation that has no derivative, as in plain PyTorch."""
    net, data = toys.network(4), toys.batches(1)
    net[0] = BufferedStage(nn.Sequential(Input(), net[0].function))
    assert_close(engine_gradients(net, method, data, 1), plain_gradients(net, data), 1e-10)


class First(nn.Module):
    """A module that makes two streams from the first stream only."""

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0] * 2, streams[0] + 1


@pytest.mark.parametrize("method", EXACT, ids=str)
def test_unused_stream_gradients_equal_autograd(method: Method) -> None:
    """If a stage does not use one of its streams, all gradients equal autograd's."""
    net, data = [stage.double() for stage in (toys.stem(2), BufferedStage(First()), toys.head(2))], toys.batches(1)
    assert_close(engine_gradients(net, method, data, 1), plain_gradients(net, data), 1e-10)


def test_as_streams_rejects_values_without_tensors() -> None:
    for nothing in ((), [], (1,), None):
        with pytest.raises(TypeError, match="a tensor or a tuple of tensors"):
            as_streams(nothing)  # type: ignore[arg-type]  # the type is the error


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_training_equals_plain_pytorch(method: Method, k: int) -> None:
    """Exact methods have the losses, weights and statistics of a plain PyTorch loop."""
    assert_trains_as_plain_training(toys.network(5), method, k, toys.batches(9))


def test_accumulation_beyond_paper_equals_plain_pytorch() -> None:
    """All methods have the weights of plain training before the first update, and k may be any number."""
    assert_trains_as_plain_training(toys.network(3), methods.PETRA, 64, toys.batches(64))


class Counting(nn.Module):
    """A module that counts its evaluations."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.function(x)
        return result


@pytest.mark.parametrize(
    ("method", "evaluations"),
    [
        (methods.BACKPROPAGATION, 1),
        (methods.REVERSIBLE_BACKPROPAGATION, 2),
        (methods.DELAYED_GRADIENTS, 1),
        (methods.DSP, 2),
        (methods.APPROXIMATE_INPUTS, 3),  # inverts with the current weights, differentiates with the stashed ones
        (methods.PETRA, 2),
    ],
    ids=str,
)
def test_function_evaluations_per_micro_batch(method: Method, evaluations: int) -> None:
    """Each method evaluates a residual function the expected number of times per micro-batch."""
    counting = Counting(toys.residual(2))
    net = [toys.stem(2), ReversibleStage(counting), ReversibleStage(toys.residual(2)), toys.head(2)]
    p = Pipeline([stage.double() for stage in net], method, optimizer=toys.sgd)
    toys.train(p, toys.batches(8), drain=False)
    before = counting.calls
    toys.train(p, toys.batches(5, seed=2), drain=False)  # in steady state: one forward and one backward a step
    assert counting.calls - before == 5 * evaluations
