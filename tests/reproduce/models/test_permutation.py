"""Test pixel-unshuffle as a stage: it is exact in both directions, keeps no tensors and works with every method."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, merge, methods
from petra_core.methods import Method
from petra_core.models import SplitStreams
from petra_core.tape import as_streams
from reproduce.models.permutation import PixelUnshuffleStage
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.properties import (
    EXACT,
    assert_bytes_are_as_predicted,
    assert_resumes_bitwise,
    assert_trains_as_plain_training,
)


class Conjugated(nn.Module):
    """A function of the small image with many channels, applied to the large image with few channels."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.function(F.pixel_unshuffle(x, 2)), 2)


class UnshuffleAll(nn.Module):
    """The permutation as an ordinary module of two streams, which autograd differentiates."""

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return F.pixel_unshuffle(streams[0], 2), F.pixel_unshuffle(streams[1], 2)


def merged() -> list[Stage]:
    """Return a stem, four reversible stages, the second of which halves the resolution, and a head."""
    torch.manual_seed(0)
    net = [
        toys.stem(2),
        ReversibleStage(toys.residual(2)),
        merge([PixelUnshuffleStage(2), ReversibleStage(toys.residual(8))]),
        ReversibleStage(toys.residual(8)),
        ReversibleStage(toys.residual(8)),
        toys.head(8),
    ]
    return [stage.double() for stage in net]


def alone() -> list[Stage]:
    """Return a network with the permutation as a separate stage; one such stage is before the stem."""
    torch.manual_seed(0)
    stem = BufferedStage(nn.Sequential(nn.Conv2d(27, 8, 1), nn.Tanh(), SplitStreams()))
    net = [
        PixelUnshuffleStage(3),  # 6x6 -> 2x2
        stem,
        ReversibleStage(toys.residual(4)),
        PixelUnshuffleStage(2),
        ReversibleStage(toys.residual(16)),
        toys.head(16),
    ]
    return [stage.double() for stage in net]


def first_block() -> list[Stage]:
    """Return a network with the permutation in the middle of a stage whose other parts keep their inputs."""
    return [merge(alone()[:4]), *alone()[4:]]


NETWORKS: dict[str, Callable[[], list[Stage]]] = {"merged": merged, "alone": alone, "first block": first_block}


def test_pixel_unshuffle_moves_pixels_to_channels() -> None:
    image = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]).reshape(1, 1, 2, 4)
    (channels,) = as_streams(PixelUnshuffleStage(2)(image))
    assert channels.tolist() == [[[[0, 2]], [[1, 3]], [[4, 6]], [[5, 7]]]]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("factor", [1, 3])
def test_reconstruction_is_bitwise_exact(factor: int, memory_format: torch.memory_format) -> None:
    stage = PixelUnshuffleStage(factor)
    streams = tuple(torch.randn(3, 4, 6, 12).to(memory_format=memory_format) for _ in range(2))
    outputs = as_streams(stage(streams))
    assert [tuple(stream.shape) for stream in outputs] == [(3, 4 * factor**2, 6 // factor, 12 // factor)] * 2
    assert_bitwise_equal(stage.reconstruct(outputs).inputs, streams)


@pytest.mark.parametrize("factor", [1, 3])
def test_gradients_equal_autograd(factor: int) -> None:
    """Recorded, recomputed and reconstructed stages have the gradients of autograd."""
    stage = PixelUnshuffleStage(factor)
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    y = F.pixel_unshuffle(x, factor)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, [x], grad)
    for tape in (stage.record((x,)), stage.recompute(()), stage.reconstruct((y,))):
        gradients, of_parameters = tape.gradients((grad,), [])
        assert_bitwise_equal(gradients, (expected,))
        assert of_parameters == ()
        assert not gradients[0].requires_grad
    assert stage.recompute(()).gradients((grad,), [], input_gradient=False) == ((), ())


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_equals_plain_pytorch(network: str, method: Method) -> None:
    assert_trains_as_plain_training(NETWORKS[network](), method, 2, toys.batches(6))


@pytest.mark.parametrize(("method", "k"), toys.METHODS_AND_K, ids=str)
def test_later_stages_equal_stages_at_full_resolution(method: Method, k: int) -> None:
    """Reversible stages after the permutation train as equivalent stages at full resolution."""
    # Reversible stages after the permutation equal reversible stages at the large resolution, if each F is between an
    # unshuffle and a shuffle and the head follows an unshuffle. The reference therefore only has stages that are tested
    # against the paper's equations. Both networks must train equally under every method, including methods with newer
    # weights and reconstructed inputs.
    net = merged()

    def at_large_resolution(stage: Stage) -> Stage:
        part = stage.parts()[-1]
        assert isinstance(part, ReversibleStage)
        return ReversibleStage(Conjugated(part.residual))

    head = net[-1]
    assert isinstance(head, HeadStage)
    large = [*net[:2], *map(at_large_resolution, net[2:5]), HeadStage(nn.Sequential(UnshuffleAll(), head.module))]
    data = toys.batches(24)
    p, q = (toys.pipeline(stages, method, accumulation=k) for stages in (net, large))
    losses = toys.train(p, data)
    assert_close(torch.tensor(losses), torch.tensor(toys.train(q, data)), 1e-12)
    assert_close(list(toys.weights(p).values()), list(toys.weights(q).values()), 1e-11)


@pytest.mark.parametrize(
    ("network", "method"),
    [("alone", method) for method in methods.PAPER]
    + [("merged", methods.PETRA), ("merged", methods.DELAYED_GRADIENTS), ("first block", methods.PETRA)]
    + [("first block", methods.APPROXIMATE_INPUTS)],
    ids=str,
)
def test_predicted_bytes_equal_measured(network: str, method: Method) -> None:
    """Predicted bytes equal the measured ones, and a separate permutation holds only messages."""
    _, predicted = assert_bytes_are_as_predicted(NETWORKS[network](), method, toys.batches(1)[0], 3, toys.sgd)
    if network == "alone":  # it keeps no tensors even if the method stashes inputs
        assert {kind for kind, count in predicted[3].peak.items() if count} == {"messages"}


@pytest.mark.parametrize(
    ("network", "method"),
    [("alone", methods.DELAYED_GRADIENTS), ("merged", methods.PETRA), ("first block", methods.APPROXIMATE_INPUTS)],
    ids=str,
)
def test_resume_with_a_full_pipeline_is_bitwise(network: str, method: Method, tmp_path: Path) -> None:
    def fresh() -> Pipeline:
        return toys.pipeline(NETWORKS[network](), method, accumulation=2, seed=5)

    assert_resumes_bitwise(fresh, toys.batches(16), 7, tmp_path)
