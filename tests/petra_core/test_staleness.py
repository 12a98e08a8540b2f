"""Test valid staleness vectors against brute force and equivalent partitions, and errors for invalid ones."""

import copy
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from petra_core import methods
from petra_core.methods import Method
from petra_core.models import group
from petra_core.optimizers import sgd
from petra_core.staleness import forward_lags, lockstep, one_f_one_b, per_device, resolve
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.petra_core.test_petra_semantics import batches, network, pipeline_of, statistics_of, weights_of
from tests.reference import RULES, Delay, Sgd, simulate, step_length

PIPELINED = [method for method in methods.PAPER if method.pipelined]
TOLERANCE = 1e-12


def random_vector(generator: random.Random, stages: int) -> tuple[int, ...]:
    """Return a vector whose neighbours are often equal and otherwise differ by 1, 2 or 3."""
    rises = [generator.choice((0, 0, 1, 1, 2, 3)) for _ in range(stages - 1)]
    return (*reversed([*itertools.accumulate(rises)]), 0)


class OneUpdateBehind(Delay):
    """PipeDream-2BW: all micro-batches of an update use the second latest version of the weights."""

    lag = 1


def brute_force_rule(method: Method) -> tuple[Any, Delay | None]:
    if method is methods.PIPEDREAM_2BW:
        return RULES["DELAYED_GRADIENTS"], OneUpdateBehind()
    return RULES[{"PAREPROP": "REVERSIBLE_BACKPROPAGATION"}.get(method.name, method.name)], None


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("case", range(4))
def test_random_vectors_match_brute_force(method: Method, case: int) -> None:
    """Random staleness vectors train as a brute-force simulation after every step."""
    generator = random.Random(f"{method} {case}")
    stages = (1, 8, generator.randint(2, 7), generator.randint(2, 7))[case]
    net = network(" ".join(["b", *generator.choices("brr", k=stages - 2), "h"][-stages:] if stages > 1 else ["h"]))
    if stages == 1:
        net = [[net[0][0]._replace(module=torch.nn.Sequential(torch.nn.Linear(5, 3)).double())]]
    vector = random_vector(generator, stages) if method.pipelined else (0,) * stages
    k = generator.randint(1, 5)
    if method.double_buffered:
        k = max(k, vector[0], 1)
    count = 2 * vector[0] + 3 * k + 2
    data, (rule, about) = batches(count), brute_force_rule(method)
    rates = [0.05 * (1 + m % 5) / 5 for m in range(count + vector[0] + 1)]
    length = step_length(net)
    reference = Sgd(lambda tick: rates[min(tick // length, count - 1)], 0.9, nesterov=True)
    history = simulate(net, rule, k, reference, data, range(count), about, vector)
    pipeline = pipeline_of(net, method, k, optimizer=sgd(1.0, weight_decay=0.0), staleness=vector)
    for m, (x, y) in enumerate(data):
        pipeline.set_learning_rate(rates[m])
        loss = pipeline.step(x, y)
        assert loss is not None
        end = min((m + 1) * length, len(history.weights) - 1)
        assert_close(weights_of(pipeline), history.weights[end], TOLERANCE)
        assert_close(statistics_of(pipeline), history.statistics[end], TOLERANCE)
        if m >= vector[0]:
            assert_close(loss, history.losses[m], TOLERANCE)
    pipeline.drain()
    assert_close(weights_of(pipeline), history.weights[-1], TOLERANCE)
    assert [worker.observed_staleness for worker in pipeline.workers] == list(vector)
    updates = count // k
    assert [worker.version for worker in pipeline.workers] == [updates] * stages


@pytest.mark.parametrize("method", PIPELINED, ids=str)
def test_delay_in_updates_follows_from_staleness(method: Method) -> None:
    """The delay of micro-batch m - d_j is floor(m/k) - floor((m - d_j)/k) updates between forward and backward."""
    vector, k = (7, 4, 4, 2, 0), 3
    pipeline = toys.pipeline(toys.network(5), method, accumulation=k, staleness=vector)
    delays: list[tuple[int, int, int]] = []
    for worker in pipeline.workers:
        original = worker.backward

        def noted(m: int, worker: Any = worker, original: Any = original) -> Any:
            delays.append((worker.index, m, worker.parts[-1].delay(worker.version)))
            return original(m)

        worker.backward = noted
    toys.train(pipeline, toys.batches(30))
    assert len(delays) == 30 * 5
    for stage, m, delay in delays:
        updates_at_forward = max(m - vector[stage], 0) // k  # from the backwards before it
        assert delay == m // k - updates_at_forward


@pytest.mark.parametrize("method", PIPELINED, ids=str)
def test_zero_staleness_equals_backpropagation(method: Method) -> None:
    """Methods that keep inputs are bitwise equal to it, methods that reconstruct them to its reversible form."""
    net, data = toys.network(6), toys.batches(12)
    trained = toys.pipeline(net, method, accumulation=2, staleness=(0,) * 6)
    losses = toys.train(trained, data)
    exact = methods.REVERSIBLE_BACKPROPAGATION if method.reconstructs else methods.BACKPROPAGATION
    for other, tolerance in ((exact, 0.0), (methods.BACKPROPAGATION, 1e-12)):
        plain = toys.pipeline(net, other, accumulation=2)
        expected = toys.train(plain, data)
        if tolerance:
            assert_close(torch.tensor(losses), torch.tensor(expected), tolerance)
            assert_close(toys.weights(trained), toys.weights(plain), 1e-11)
        elif not (method.reconstructs and method.stashes_weights):  # these evaluate twice, with other graphs
            assert losses == expected
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
