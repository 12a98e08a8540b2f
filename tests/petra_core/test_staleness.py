"""Test staleness vectors: known schedules, and trainings that are bitwise equal."""

import copy
from collections.abc import Sequence

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.models import group
from petra_core.staleness import forward_lags, lockstep, one_f_one_b, per_device, resolve
from tests import toys
from tests.compare import assert_bitwise_equal

PIPELINED = [method for method in methods.PAPER if method.pipelined]
TOLERANCE = 1e-12


@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.DSP, methods.PETRA], ids=str)
def test_zero_staleness_equals_backpropagation(method: Method) -> None:
    """Methods that keep inputs are bitwise equal to it, methods that reconstruct them to its reversible form."""
    net, data = toys.network(6), toys.batches(12)
    trained = toys.pipeline(net, method, accumulation=2, staleness=(0,) * 6)
    plain = toys.pipeline(
        net, methods.REVERSIBLE_BACKPROPAGATION if method.reconstructs else methods.BACKPROPAGATION, accumulation=2
    )
    assert toys.train(trained, data) == toys.train(plain, data)
    assert_bitwise_equal(toys.weights(trained), toys.weights(plain))


@pytest.mark.parametrize("method", PIPELINED, ids=str)
@pytest.mark.parametrize("sizes", [(3, 2, 2), (1, 5, 1), (7,), (1,) * 7], ids=str)
def test_merged_stages_equal_stages_of_equal_staleness(method: Method, sizes: Sequence[int]) -> None:
    """Merged stages in lockstep train bitwise as separate stages with equal staleness."""
    net, data = toys.network(7), toys.batches(20)
    apart = toys.pipeline(net, method, accumulation=2, staleness=per_device(sizes, slack=1))
    merged = toys.pipeline(group(copy.deepcopy(net), sizes), method, accumulation=2)
    assert merged.staleness == lockstep(len(sizes))
    assert toys.train(apart, data, drain=False) == toys.train(merged, data, drain=False)
    apart.drain()
    merged.drain()
    for one, other in zip(apart.model.parameters(), merged.model.parameters(), strict=True):
        assert_bitwise_equal(one, other)


def test_vectors_of_known_schedules() -> None:
    """lockstep, one_f_one_b and per_device return the known staleness vectors."""
    assert lockstep(4) == (6, 4, 2, 0)
    assert one_f_one_b(4) == (3, 2, 1, 0)
    assert per_device((3, 2, 2, 3)) == (3, 3, 3, 2, 2, 1, 1, 0, 0, 0)
    assert per_device((2, 1, 1), slack=0.5) == (3, 3, 2, 0)
    assert forward_lags(lockstep(5)) == (0, 1, 2, 3, 4)
    assert forward_lags((3, 3, 2, 0)) == (0, 0, 0, 1)
    assert resolve(methods.PETRA, 3, 1) == (4, 2, 0)
    assert resolve(methods.PAREPROP, 3, 1) == (0, 0, 0)
    for method in methods.ALL:
        assert tuple(method.staleness(stage, 3) for stage in range(3)) == resolve(method, 3, accumulation=4)
    assert [method.ticks_to_steady(3, 2) for method in (methods.PETRA, methods.DELAYED_GRADIENTS)] == [6, 10]
