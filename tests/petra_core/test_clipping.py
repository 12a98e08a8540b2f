"""Test clipping by the norm of the whole network, as plain torch does, and by the norm of each stage."""

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from petra_core import Clip, Pipeline, methods
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.stages import Stage, sequential
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.petra_core.distributed.test_distributed import in_processes

SYNCHRONOUS = [method for method in methods.ALL if not method.pipelined]
MAX_NORM = 0.05  # below most norms of the toys' gradients


def plain(stages: list[Stage], k: int, data: Any, *, per_stage: bool) -> dict[str, Any]:
    """Return the weights after plain training with torch's clipping."""
    stages = copy.deepcopy(stages)
    model, loss = sequential(stages), stages[-1].parts()[-1].loss
    optimizer = toys.sgd(list(model.parameters()))
    for number, (x, y) in enumerate(data, 1):
        (loss(model(x), y) / k).backward()
        if number % k == 0:
            lengths = [clip_grad_norm_(part.parameters(), MAX_NORM) for part in (stages if per_stage else [model])]
            assert max(lengths) > MAX_NORM
            optimizer.step()
            optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.parametrize("per_stage", [False, True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("method", SYNCHRONOUS, ids=str)
def test_synchronous_methods_clip_as_plain_pytorch(method: Method, k: int, per_stage: bool) -> None:
    """Synchronous methods clip as `clip_grad_norm_` does, by the norm of the network or of each stage."""
    stages, data = toys.network(5), toys.batches(6)
    p = Pipeline(
        copy.deepcopy(stages), method, accumulation=k, optimizer=toys.sgd, clip=Clip(MAX_NORM, per_stage=per_stage)
    )
    toys.train(p, data)
    compare = assert_bitwise_equal if method is methods.BACKPROPAGATION and k == 1 else assert_close
    compare(dict(sequential(p.stages).state_dict()), plain(stages, k, data, per_stage=per_stage))


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_per_stage_clip_follows_before_update(method: Method) -> None:
    """Under every method, clipping per stage comes after the hook before_update."""
    norms = []

    def grow(_index: int, _version: int, stage: Stage) -> None:
        for parameter in stage.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(100)

    class Looks(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]  # the engine gives no closure
            gradients = [p.grad for group in self.param_groups for p in group["params"]]
            norms.append(torch.nn.utils.get_total_norm(gradients).item())

    k = 8 if method.double_buffered else 1
    p = Pipeline(
        toys.network(4),
        method,
        accumulation=k,
        optimizer=lambda parameters: Looks(parameters, lr=0.1),
        before_update=grow,
        clip=Clip(MAX_NORM, per_stage=True),
    )
    toys.train(p, toys.batches(2 * k))
    assert norms == pytest.approx([MAX_NORM] * 8, rel=1e-5)


def test_clip_keeps_gradients_below_max_norm() -> None:
    """If max_norm is above all norms, training is bitwise that without clipping."""
    weights = []
    for clip in (None, Clip(1e9), Clip(1e9, per_stage=True)):
        p = Pipeline(toys.network(4), methods.BACKPROPAGATION, optimizer=toys.sgd, clip=clip)
        toys.train(p, toys.batches(3))
        weights.append(dict(sequential(p.stages).state_dict()))
    assert_bitwise_equal(weights[1], weights[0])
    assert_bitwise_equal(weights[2], weights[0])


def clipped(rank: int, expected: dict[str, Any]) -> None:
    """Check that two processes clip by the norm over both."""
    del rank
    channel = ProcessChannel((2, 3))
    p = Pipeline(
        toys.network(5), methods.BACKPROPAGATION, optimizer=toys.sgd, seed=7, channel=channel, clip=Clip(MAX_NORM)
    )
    toys.train(p, toys.batches(4))
    assert_bitwise_equal(p.gather(), expected)
    channel.close()


def test_global_norm_spans_processes() -> None:
    """Two processes clip by the norm over all stages, bitwise as plain PyTorch."""
    expected = plain(toys.network(5), 1, toys.batches(4), per_stage=False)
    in_processes(2, clipped, expected)
