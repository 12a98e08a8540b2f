"""Test clipping by the norm of the whole network, as plain torch does, and by the norm of each stage."""

from typing import Any

import pytest
import torch

from petra_core import Clip, Pipeline, methods
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.stages import Stage, sequential
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import in_processes
from tests.properties import assert_trains_as_plain_training, plain_training

SYNCHRONOUS = [method for method in methods.ALL if not method.pipelined]
MAX_NORM = 0.05  # below most norms of the toys' gradients


@pytest.mark.parametrize("per_stage", [False, True])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("method", SYNCHRONOUS, ids=str)
def test_synchronous_methods_clip_as_plain_pytorch(method: Method, k: int, per_stage: bool) -> None:
    """Synchronous methods clip as `clip_grad_norm_` does, by the norm of the network or of each stage."""
    clip = Clip(MAX_NORM, per_stage=per_stage)
    assert_trains_as_plain_training(toys.network(5), method, k, toys.batches(6), clip=clip, inspect=False)


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
    _, model = plain_training(toys.network(5), toys.batches(4), clip=Clip(MAX_NORM))
    in_processes(2, clipped, dict(model.state_dict()))
