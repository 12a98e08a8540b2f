"""Test that replicas stay bitwise equal and train as one process with a larger batch does."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from petra_core import HeadStage, Pipeline, Stage, methods
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.models import sequential
from reproduce.distributed.replicas import Replicas
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.processes import in_processes

Data = list[tuple[Tensor, Tensor]]


def make(stages: list[Stage], method: Method, replicas: Replicas, k: int, channel: ProcessChannel | None) -> Pipeline:
    options = {"accumulation": k, "optimizer": toys.sgd, "seed": 7 + replicas.index, "channel": channel}
    return Pipeline(toys.of_process(stages, channel), method, before_update=replicas.average_gradients, **options)


def shared(data: Data, replicas: Replicas) -> Data:
    return data[replicas.index :: replicas.count]


def everybody(state: object) -> list[object]:
    states: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


def joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def two_replicas(rank: int) -> None:
    replicas, single = Replicas((0, 1)), Replicas()
    assert (replicas.index, replicas.count) == (rank, 2)
    (stage,) = toys.network(5, norm=False)[:1]
    for parameter in stage.parameters():
        parameter.grad = torch.full_like(parameter, rank)
    single.average_gradients(0, 0, stage)  # a single replica needs no other process
    gradients = [parameter.grad for parameter in stage.parameters()]
    assert all(gradient is not None and bool((gradient == rank).all()) for gradient in gradients)
    data = toys.batches(24)
    for method in (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION, methods.PETRA):
        for k in (1, 3):
            pipeline = make(toys.network(5, norm=False), method, replicas, k, None)
            toys.train(pipeline, shared(data, replicas))
            alone = toys.pipeline(toys.network(5, norm=False), method, accumulation=k, seed=0)
            toys.train(alone, [joined(data[at : at + 2]) for at in range(0, len(data), 2)])
            assert_close(toys.weights(pipeline), toys.weights(alone))
            assert_bitwise_equal(*everybody(toys.weights(pipeline)))
    pipeline = make(toys.network(4), methods.PETRA, replicas, 2, None)
    toys.train(pipeline, shared(data, replicas))
    before = toys.weights(pipeline)
    first, second = everybody(before)
    buffers = list(pipeline.model.buffers())
    with replicas.average_statistics(pipeline.model):
        for name, tensor in toys.weights(pipeline).items():
            if "running" in name:
                assert not torch.equal(first[name], second[name])
                assert_close(tensor, (first[name] + second[name]) / 2)
            else:
                assert_bitwise_equal(first[name], second[name])
    assert all(a is b for a, b in zip(pipeline.model.buffers(), buffers, strict=True)), "the very tensors are back"
    assert_bitwise_equal(toys.weights(pipeline), before)
    means(rank)
    some_without_a_gradient(rank)
    refuse_other_weights(rank)
    lose_the_other(rank)


@pytest.mark.slow
def test_two_replicas_match_one_with_twice_the_batch() -> None:
    """Two replicas train as one with twice the batch, stay bitwise equal, and report a replica that hangs."""
    in_processes(2, two_replicas)


def some_without_a_gradient(rank: int) -> None:
    """Check that a missing gradient counts as zero: a function may skip a branch in one replica and not in another."""
    replicas = Replicas((0, 1))
    stage = HeadStage(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4))))
    own, theirs, both, _ = stage.parameters()
    for parameter in (own if rank == 0 else theirs, both):
        parameter.grad = torch.full_like(parameter, 1 + rank)
    replicas.average_gradients(0, 1, stage)
    assert [None if p.grad is None else p.grad.mean().item() for p in stage.parameters()] == [0.5, 1.0, 1.5, None]


def refuse_other_weights(rank: int) -> None:
    pipeline = make(toys.network(3, seed=rank), methods.PETRA, Replicas((0, 1)), 1, None)
    with pytest.raises(ValueError, match=r"weights of stage 2\[0\] is .* on rank 0 and .* on rank 1\. Begin every"):
        toys.train(pipeline, toys.batches(1))


def mesh(rank: int) -> None:
    """Train two pipelines, ranks 0 and 1, and ranks 2 and 3; the reference runs each replica in one process."""
    row, column = ([0, 1], [2, 3])[rank // 2], ([0, 2], [1, 3])[rank % 2]
    data = toys.batches(40)
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS):
        for k in (1, 2):
            replicas = Replicas(column)
            channel = ProcessChannel((2, 3), ranks=row)
            split = make(toys.network(5, dropout=0.2), method, replicas, k, channel)
            whole = make(toys.network(5, dropout=0.2), method, replicas, k, None)
            mine = shared(data, replicas)
            losses, expected = toys.train(split, mine[:13], drain=False), toys.train(whole, mine[:13], drain=False)
            assert losses == (expected if rank % 2 else [])
            test = data[0][0]
            with replicas.average_statistics(sequential(split.stages)):
                logits = split.evaluate(test)
            with replicas.average_statistics(whole.model):
                assert_bitwise_equal(logits, whole.evaluate(test))
            assert_bitwise_equal(*everybody(logits)[::2])
            state = split.state_dict()
            channel.close()
            channel = ProcessChannel((2, 3), ranks=row)
            resumed = make(toys.network(5, dropout=0.2, seed=9), method, replicas, k, channel)
            resumed.load_state_dict(state)
            toys.train(resumed, mine[13:]), toys.train(whole, mine[13:])
            states, references = resumed.state_dict()["workers"], whole.state_dict()["workers"]
            for index in channel.stages:
                assert_bitwise_equal(states[index], references[index])
            channel.close()


@pytest.mark.slow
def test_split_replicas_match_replicas_in_one_process() -> None:
    """Replicas over two processes each are bitwise equal to replicas in one process each."""
    in_processes(4, mesh)


def lose_the_other(rank: int) -> None:
    replicas = Replicas((0, 1), timeout=timedelta(seconds=1))
    if rank == 0:
        stage = HeadStage(nn.Linear(2, 2))
        for parameter in stage.parameters():
            parameter.grad = torch.ones_like(parameter)
        with pytest.raises(
            RuntimeError, match=r"rank 0 lost .* \(one of ranks 1\) during .* update 4 of stage 3: .* for 1 s"
        ):
            replicas.average_gradients(3, 4, stage)
    dist.barrier()


def means(rank: int) -> None:
    """Check that statistics are averaged only once, and that the sum of lowest numbers, as in masks, is finite."""
    replicas = Replicas((0, 1))
    model = nn.BatchNorm1d(2)
    assert model.running_mean is not None
    model.running_mean.fill_(rank)
    mask = torch.full((2,), torch.finfo(torch.float32).min)
    model.register_buffer("mask", mask)
    with replicas.average_statistics(model):
        averaged = list(model.buffers())
        with replicas.average_statistics(model):  # already averaged
            assert all(inner is outer for inner, outer in zip(model.buffers(), averaged, strict=True))
        assert averaged[0].tolist() == [0.5, 0.5]
        torch.testing.assert_close(averaged[-1], mask, rtol=0, atol=0)
