"""Pixel-unshuffle as a stage: exact in both directions, nothing kept, and the methods do with it what they should."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, checkpoint, merge, methods
from petra_core.methods import Method
from petra_core.models import SplitStreams, sequential
from petra_core.models.permutation import PixelUnshuffleStage
from petra_core.prediction.memory import predict
from petra_core.tape import as_streams
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close

HELD_BETWEEN_TICKS = ("inputs", "stashed_weights", "messages", "graph")
EXACT = (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION)


class Conjugated(nn.Module):
    """A function of the small, deep image, as a function of the large, flat one."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.function(F.pixel_unshuffle(x, 2)), 2)


class UnshuffleAll(nn.Module):
    """The permutation as an ordinary module of two streams, differentiated by autograd."""

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return F.pixel_unshuffle(streams[0], 2), F.pixel_unshuffle(streams[1], 2)


def merged(dropout: float = 0.0) -> list[Stage]:
    """Stem, a run of four reversible stages of which the second is the first at half the resolution, and the head."""
    torch.manual_seed(0)
    net = [
        toys.stem(2),
        ReversibleStage(toys.residual(2)),
        merge([PixelUnshuffleStage(2), ReversibleStage(toys.residual(8, dropout))]),
        ReversibleStage(toys.residual(8, dropout)),
        ReversibleStage(toys.residual(8)),
        toys.head(8),
    ]
    return [stage.double() for stage in net]


def alone() -> list[Stage]:
    """The permutation as a stage of its own; one is the very first stage, before the stem."""
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
    """The permutation in the middle of a stage whose other parts keep their inputs."""
    return [merge(alone()[:4]), *alone()[4:]]


NETWORKS: dict[str, Callable[[], list[Stage]]] = {"merged": merged, "alone": alone, "first block": first_block}


def test_the_permutation_as_a_picture() -> None:
    image = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]).reshape(1, 1, 2, 4)
    (channels,) = as_streams(PixelUnshuffleStage(2)(image))
    assert channels.tolist() == [[[[0, 2]], [[1, 3]], [[4, 6]], [[5, 7]]]]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_reconstruction_is_exact_to_the_bit(factor: int, memory_format: torch.memory_format) -> None:
    stage = PixelUnshuffleStage(factor)
    streams = tuple(torch.randn(3, 4, 6, 12).to(memory_format=memory_format) for _ in range(2))
    outputs = as_streams(stage(streams))
    assert [tuple(stream.shape) for stream in outputs] == [(3, 4 * factor**2, 6 // factor, 12 // factor)] * 2
    assert_bitwise_equal(stage.reconstruct(outputs).inputs, streams)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_gradients_are_autograds(factor: int) -> None:
    stage = PixelUnshuffleStage(factor)
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    y = F.pixel_unshuffle(x, factor)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, [x], grad)
    for tape in (stage.record((x,)), stage.retrace(()), stage.reconstruct((y,))):
        found, of_parameters = tape.gradients((grad,), [])
        assert_bitwise_equal(found, (expected,))
        assert of_parameters == ()
        assert found is not None
        assert not found[0].requires_grad
    assert stage.retrace(()).gradients((grad,), [], input_gradient=False) == (None, ())


@pytest.mark.parametrize(("shape", "factor"), [((1, 2, 5, 6), 2), ((1, 2, 6, 5), 2), ((2, 6, 6), 2), ((1, 2, 6, 8), 3)])
def test_sizes_that_cannot_be_divided_are_refused(shape: tuple[int, ...], factor: int) -> None:
    with pytest.raises(ValueError, match=rf"divisible by {factor}, got \({shape[0]}, "):
        PixelUnshuffleStage(factor)(torch.ones(shape))
    with pytest.raises(ValueError, match="factor must be at least 1, got 0"):
        PixelUnshuffleStage(0)


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_training_equals_plain_training(network: str, method: Method) -> None:
    k = 2
    net, data = NETWORKS[network](), toys.batches(6)
    model = sequential(copy.deepcopy(net))
    optimizer = toys.sgd(list(model.parameters()))
    for number, (x, y) in enumerate(data, 1):
        (F.cross_entropy(model(x), y) / k).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    p = toys.pipeline(net, method, accumulation=k)
    toys.train(p, data)
    assert_close(toys.weights(p), dict(model.state_dict()), 1e-9)


@pytest.mark.parametrize(("method", "k"), toys.METHODS_AND_K, ids=str)
def test_reversible_stages_behind_it_are_those_of_the_large_image(method: Method, k: int) -> None:
    # A run of reversible stages with the permutation in it is the same run at the large resolution, each F between a
    # shuffle and its inverse, and the head behind one: only stages that the equations of the paper are tested with.
    # So under every method, newer weights and reconstructed inputs included, both must train alike.
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


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_predicted_bytes_equal_measured(network: str, method: Method) -> None:
    k = 3  # so that gradients wait too
    stages, (x, y) = NETWORKS[network](), toys.batches(1)[0]
    predicted = predict(stages, method, x, y, accumulation=k, optimizer=toys.sgd)
    p = toys.pipeline(stages, method, accumulation=k)
    largest = [dict.fromkeys(HELD_BETWEEN_TICKS, 0) for _ in stages]
    for _ in range(4 * len(stages) + 2 * k):
        p.step(x, y)
        for stage, held in zip(p.memory().stages, largest, strict=True):
            for kind in HELD_BETWEEN_TICKS:
                held[kind] = max(held[kind], stage.now[kind])
    for stage, held, prediction in zip(p.memory().stages, largest, predicted, strict=True):
        assert dict(stage.peak) == dict(prediction.peak), f"peak of stage {stage.stage}"
        assert held == {kind: prediction.held[kind] for kind in HELD_BETWEEN_TICKS}, (
            f"between ticks, stage {stage.stage}"
        )


def test_it_keeps_nothing_even_where_inputs_are_stashed() -> None:
    x, y = toys.batches(1)[0]
    for method in methods.ALL:
        stage = predict(alone(), method, x, y)[3]
        assert {kind for kind, count in stage.peak.items() if count} == {"messages"}, method


@pytest.mark.parametrize("network", [lambda: merged(dropout=0.3), alone, first_block], ids=["merged", "alone", "first"])
@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_resume_with_a_full_pipeline_is_bitwise(
    method: Method, network: Callable[[], Sequence[Stage]], tmp_path
) -> None:
    data = toys.batches(16)

    def fresh() -> Pipeline:
        return toys.pipeline(network(), method, accumulation=2, seed=5)

    undisturbed, stopped, resumed = fresh(), fresh(), fresh()
    expected = toys.train(undisturbed, data)
    losses = toys.train(stopped, data[:7], drain=False)
    checkpoint.save(tmp_path / "state.pt", stopped.state_dict())
    resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt"))
    assert losses + toys.train(resumed, data[7:]) == expected
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())
