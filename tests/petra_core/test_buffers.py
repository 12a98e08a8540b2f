"""Test property 5: running statistics. `test_petra_semantics` compares those of every method with the reference."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core.buffers import FrozenBuffers
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


def test_batch_norm_tracks_statistics_only_while_it_is_told_to() -> None:
    """The engine once set `track_running_stats` again after each reconstruction."""
    p = toys.pipeline(toys.network(3))
    norm = p.stages[1].function[1]
    toys.train(p, toys.batches(3))
    norm.track_running_stats = False
    before = copy.deepcopy(norm.state_dict())
    toys.train(p, toys.batches(3))
    assert not norm.track_running_stats
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert_bitwise_equal([norm.state_dict()[n] for n in statistics], [before[n] for n in statistics])


def multiply_by_count(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return x * m.count


def test_graph_keeps_buffer_from_forward() -> None:
    """The buffer was once restored in place without autograd's knowledge, so the gradient was 0."""
    function = toys.computing(multiply_by_count, count=lambda: nn.Buffer(torch.zeros(())))()
    x = torch.ones(3, requires_grad=True)
    with FrozenBuffers(function).freeze():
        y = function(x)
    assert function.count == 0
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]
