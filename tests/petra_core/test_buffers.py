"""Test property 5: every method updates running statistics once per micro-batch, in the forward."""

import copy

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, methods
from petra_core.buffers import FrozenBuffers
from petra_core.methods import Method
from petra_core.models import sequential
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close

pytestmark = pytest.mark.convolutions


def test_evaluate_uses_running_statistics_and_changes_no_state() -> None:
    """`evaluate` uses running statistics and leaves the state and training modes unchanged."""
    net, data = toys.network(5), toys.batches(8)
    p = toys.pipeline(net)
    toys.train(p, data, drain=False)
    frozen = p.stages[1].function[1]  # a BatchNorm that the user keeps in evaluation mode
    frozen.eval()
    state = p.state_dict()
    x = torch.cat([x for x, _ in data])
    logits = p.evaluate(x)
    assert_bitwise_equal(p.state_dict(), state)
    modes = {module: module.training for stage in p.stages for module in stage.modules()}
    assert [module for module, training in modes.items() if not training] == [frozen]
    assert_close(logits, copy.deepcopy(p.model).eval()(x), 1e-12)
    assert_close(logits[:4], p.evaluate(x[:4]), 1e-12)  # batch statistics are not used
    assert not logits.requires_grad


class Remembering(nn.Module):
    """A module that writes one buffer in place, replaces another, and uses a third that the graph saves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mask", torch.full((1, 1, 1, 1), 2.0))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean()
        return torch.tanh(x * self.scale) * self.mask


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_buffers_update_once_per_micro_batch(method: Method) -> None:
    """After n micro-batches, buffers equal those of n plain forwards under every method."""
    # memcnn, RevTorch, revlib and torch.utils.checkpoint update them two or three times a step. With constant weights,
    # the statistics after n micro-batches are those of n plain forwards.
    data = toys.batches(9)
    remembering = [toys.stem(2), ReversibleStage(Remembering()), ReversibleStage(Remembering()), toys.head(2)]
    for net in (toys.network(6), [stage.double() for stage in remembering]):
        p = toys.pipeline(net, method, optimizer=None)
        toys.train(p, data)
        model = sequential(copy.deepcopy(net))
        for x, _ in data:
            model(x)
        buffers = dict(model.named_buffers())
        assert any("running_var" in name for name in buffers)
        assert_close(dict(p.model.named_buffers()), buffers, 1e-12)
        assert {int(b) for name, b in buffers.items() if name.endswith(("tracked", "count"))} == {9}


def test_frozen_buffers_support_every_normalisation() -> None:
    """Inside FrozenBuffers, normalisation layers give their usual output and keep their buffers."""
    norms = nn.Sequential(
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.InstanceNorm2d(4),
        nn.GroupNorm(2, 4),
    )
    x = torch.randn(3, 4, 5, 5)
    expected = copy.deepcopy(norms)(x)
    before = copy.deepcopy(norms.state_dict())
    with FrozenBuffers(norms).freeze():
        result = norms(x)
    assert_bitwise_equal(norms.state_dict(), before)
    assert_bitwise_equal(result, expected)
    norms(x)
    assert int(norms[0].num_batches_tracked) == 1


class Scaled(nn.Module):
    """A module that multiplies its input by the number of evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


def test_graph_keeps_buffer_from_forward() -> None:
    """The buffer was once restored in place without autograd's knowledge, so the gradient was 0."""
    function, x = Scaled(), torch.ones(3, requires_grad=True)
    with FrozenBuffers(function).freeze():
        y = function(x)
    assert function.count == 0
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]


class Inplace(nn.Module):
    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return streams[0].relu_(), streams[1]


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_in_place_write_to_input_raises(method: Method) -> None:
    """A module that writes to its input in place raises ValueError in training and evaluation."""
    p = Pipeline([toys.stem(2).double(), BufferedStage(Inplace()), toys.head(2).double()], method)
    with pytest.raises(ValueError, match="Inplace wrote to its input in place"):
        toys.train(p, toys.batches(3))
    with pytest.raises(ValueError, match="ReLU wrote to its input in place"):
        Pipeline([BufferedStage(nn.ReLU(inplace=True)), toys.head(2).double()], method).evaluate(
            -torch.ones(2, 4, 3, 3)
        )
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # other errors are not changed
        Pipeline([HeadStage(nn.Linear(3, 2))], method).step(torch.ones(4, 5), torch.zeros(4, dtype=torch.int64))
