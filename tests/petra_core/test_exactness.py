"""Test property 1: with one micro-batch at a time, gradients equal autograd's for every kind of stage and every k."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, Pipeline, ReversibleStage, Stage, methods, models
from petra_core.methods import Method
from reproduce.models.invertible_revnet import invertible_revnet
from tests import toys
from tests.compare import assert_close
from tests.properties import assert_trains_as_plain_training, engine_gradients, evaluations, plain_gradients

pytestmark = pytest.mark.convolutions


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
        *((models.revnet, 18, 1), (models.revnet, 50, 3)),
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


def with_unused_stream() -> list[Stage]:
    torch.manual_seed(0)
    first_only = toys.computing(lambda m, streams: (streams[0] * 2, streams[0] + 1))
    return [stage.double() for stage in (toys.stem(2), BufferedStage(first_only()), toys.head(2))]


class Opaque(torch.autograd.Function):
    """The identity, without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()


def with_opaque_input() -> list[Stage]:
    first, *others = toys.network(4)
    return [BufferedStage(toys.computing(lambda m, x: m.f(Opaque.apply(x)))(first.function)), *others]


#: They keep a graph, invert with current and with stashed weights; the other methods do nothing else.
EVALUATING_DIFFERENTLY = (methods.DELAYED_GRADIENTS, methods.PETRA, methods.APPROXIMATE_INPUTS)
OTHER_NETWORKS: dict[str, Callable[[], list[Stage]]] = {
    "one stage": lambda: toys.network(1),
    "merged": lambda: models.group(toys.network(6), (3, 2, 1)),
    "merged with the head": lambda: models.group(toys.network(6), (2, 4)),
    "complex and boolean streams": toys.complex_network,
    "unused stream": with_unused_stream,
    "input without a derivative": with_opaque_input,
}
NETWORKS = {"five stages": lambda: toys.network(5), **OTHER_NETWORKS}


@pytest.mark.parametrize(
    ("network", "k", "method"),
    [
        *(("five stages", k, method) for method, k in (*((method, 3) for method in methods.ALL), (methods.PETRA, 1))),
        *((network, 3, method) for network in OTHER_NETWORKS for method in EVALUATING_DIFFERENTLY),
    ],
    ids=str,
)
def test_training_equals_plain_pytorch(network: str, k: int, method: Method) -> None:
    """With one micro-batch at a time, losses, weights, statistics and outputs are those of a plain PyTorch loop."""
    inspect = network != "five stages" or method is methods.PETRA
    assert_trains_as_plain_training(NETWORKS[network](), method, k, toys.batches(8), inspect=inspect)


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_function_evaluations_per_micro_batch(method: Method) -> None:
    """Each method evaluates a residual function the expected number of times per micro-batch."""
    calls: list[int] = []
    counting = toys.computing(lambda m, x: calls.append(1) or m.f(x))
    net = [toys.stem(2), ReversibleStage(counting(toys.residual(2))), ReversibleStage(toys.residual(2)), toys.head(2)]
    p = Pipeline([stage.double() for stage in net], method, optimizer=toys.sgd)
    toys.train(p, toys.batches(8), drain=False)
    before = len(calls)
    toys.train(p, toys.batches(5, seed=2), drain=False)  # in steady state: one forward and one backward a step
    assert len(calls) - before == 5 * evaluations(method)
