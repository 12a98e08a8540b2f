"""Test that several processes with Gloo give bitwise the results of one process."""

import itertools
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, checkpoint, methods
from petra_core.distributed import ProcessChannel
from petra_core.messages import Message
from petra_core.methods import Method
from petra_core.stages import Stage
from petra_core.staleness import Action
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.constructs import narrow, narrow_batch
from tests.processes import in_processes


class Slow(ProcessChannel):
    """A channel that delays every message by a random time."""

    def send(self, stage: int, message: Message) -> None:
        time.sleep(random.uniform(0, 0.004))
        super().send(stage, message)

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        time.sleep(random.uniform(0, 0.004))
        return super().collect(stage, action)


Setting = tuple[Method, int, tuple[int, ...] | None]  # method, k and staleness


class Outcome(NamedTuple):
    """Results of one process: with micro-batches in flight, and then of two trainings that are drained."""

    losses: list[float]
    evaluated: Tensor
    state: dict[str, Any]
    held: list[dict[str, int]]  # bytes by kind, for each stage
    drained: list[list[float]]  # losses


def train_all(pipeline: Pipeline, stages: int) -> Outcome:
    losses = toys.train(pipeline, toys.batches(2 * stages + 2), drain=False)
    evaluated = pipeline.evaluate(toys.batches(1, size=3, seed=5)[0][0])
    state, held = pipeline.state_dict(), [dict(stage.now) for stage in pipeline.memory().stages]
    rest = (toys.batches(3, seed=3), toys.batches(3, size=3, seed=4))
    return Outcome(losses, evaluated, state, held, [toys.train(pipeline, batches) for batches in rest])


def compare(
    rank: int,
    stages: int,
    partition: tuple[int, ...],
    make_channel: Callable[[tuple[int, ...]], ProcessChannel],
    alone: bytes,
) -> None:
    """Compare with the pickled outcomes of one process, by setting."""
    outcomes: dict[Setting, Outcome] = pickle.loads(alone)
    last = rank == len(partition) - 1
    for (method, k, staleness), expected in outcomes.items():
        channel = make_channel(partition)
        ours = train_all(toys.pipeline_of_process(stages, method, k, channel, staleness), stages)
        assert ours.losses == (expected.losses if last else [])
        assert_bitwise_equal(ours.evaluated, expected.evaluated)
        own_states, whole_states = ours.state.pop("workers"), expected.state.pop("workers")
        del ours.state["run"]
        assert_bitwise_equal(ours.state, expected.state)
        for index in range(stages):
            if index in channel.stages:
                assert_bitwise_equal(own_states[index], whole_states[index])
                assert ours.held[index - channel.stages.start] == expected.held[index]
            else:
                assert own_states[index] is None
        assert ours.drained == (expected.drained if last else [[], []])
        channel.close()


def resume_elsewhere(rank: int, folder: Path, expected: dict[Method, dict[str, Any]]) -> None:
    """Resume in two processes from the state of one, at a micro-batch with messages in flight."""
    for method, state in expected.items():
        channel = ProcessChannel((2, 3))
        pipeline = toys.pipeline_of_process(5, method, 2, channel, (5, 4, 2, 2, 0))
        pipeline.load_state_dict(checkpoint.load(folder / f"{method.name}.pt"))
        toys.train(pipeline, toys.batches(16)[7:])
        workers = pipeline.state_dict()["workers"]
        for index in channel.stages:
            assert_bitwise_equal(workers[index], state["workers"][index])
        channel.close()


@pytest.mark.slow
def test_two_new_processes_resume_checkpoint_of_one(tmp_path: Path) -> None:
    """Two new processes resume bitwise from a checkpoint of one process with messages in flight."""
    data, expected = toys.batches(16), {}
    for method in SOME:
        pipeline = toys.pipeline_of_process(5, method, 2, staleness=(5, 4, 2, 2, 0))
        toys.train(pipeline, data[:7], drain=False)
        checkpoint.save(tmp_path / f"{method.name}.pt", pipeline.state_dict())
        toys.train(pipeline, data[7:])
        expected[method] = pipeline.state_dict()
    in_processes(2, resume_elsewhere, tmp_path, expected)


#: Neighbouring stages in two processes have equal staleness, or differ by one, three or four micro-batches.
VECTORS = ((4, 3, 2, 1, 0), (5, 5, 1, 1, 0), (2, 2, 1, 0, 0), (3, 3, 0, 0, 0))
SOME = (methods.PETRA, methods.DELAYED_GRADIENTS)


@pytest.mark.parametrize(
    ("stages", "partition", "channel", "which", "ks", "vectors"),
    [
        (5, (3, 2), ProcessChannel, methods.PAPER, (3,), (None,)),
        (5, (2, 2, 1), ProcessChannel, SOME, (2,), VECTORS),
        (6, (1, 1, 1, 3), ProcessChannel, (*SOME, methods.APPROXIMATE_INPUTS), (2,), (None,)),
        (6, (2, 2, 2), Slow, SOME, (1,), (None,)),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else None,
)
@pytest.mark.slow
def test_bitwise_equal_to_one_process(
    stages: int,
    partition: tuple[int, ...],
    channel: Callable[[tuple[int, ...]], ProcessChannel],
    which: tuple[Method, ...],
    ks: tuple[int, ...],
    vectors: tuple[tuple[int, ...] | None, ...],
) -> None:
    """Several processes have bitwise the losses, states and evaluations of one, however slow the messages are."""
    outcomes: dict[Setting, Outcome] = {
        (method, k, staleness): train_all(toys.pipeline_of_process(stages, method, k, staleness=staleness), stages)
        for method, k, staleness in itertools.product(which, ks, vectors)
    }
    # Pickled here, because torch would share the memory of each tensor between the processes.
    in_processes(len(partition), compare, stages, partition, channel, pickle.dumps(outcomes))


def sliced() -> list[Stage]:
    """Return a network whose output has gaps in memory."""
    *below, head = toys.network(3)
    return [*below, HeadStage(toys.computing(lambda m, x: m.f(x)[:, : toys.CLASSES - 1])(head.function))]


def views(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a view with gaps for later micro-batches only, and an expanded view that has the size of its storage."""
    hidden = m.f(x.flatten(1))
    return hidden[:, ::2] if x.sum() < 0 else hidden[:, ::2].clone(), (hidden + 1)[:, :1].expand(-1, 66)


def viewing_network() -> list[Stage]:
    """Return two stages between which views are sent. Their sums depend on the strides in the last bits."""
    torch.manual_seed(0)
    head = toys.computing(lambda m, v: m.f(torch.stack([v[0].sum(1), v[1].sum(1)], 1)))
    stages = (BufferedStage(toys.computing(views)(nn.Linear(108, 66))), HeadStage(head(nn.Linear(2, toys.CLASSES))))
    return [stage.double() for stage in stages]


def signed(count: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Return micro-batches, of which those after the third have negative sums."""
    return [(x.abs() * (-1 if m > 2 else 1), y) for m, (x, y) in enumerate(toys.batches(count, size=size))]


def two_ranks(rank: int) -> None:
    """Check errors, and that views and complex and boolean streams arrive unchanged."""
    with pytest.raises(ValueError, match="each of the 2 ranks at least one stage, got \\(3, 0\\)"):
        ProcessChannel((3, 0))
    with pytest.raises(ValueError, match=rf"ascending order and contain this rank {rank}, got \[1, 0\]"):
        ProcessChannel((2, 1), ranks=(1, 0))
    with pytest.raises(ValueError, match="compare_every must be at least 1, got 0"):
        ProcessChannel((2, 1), compare_every=0)
    channel = ProcessChannel((2, 1))
    with pytest.raises(ValueError, match="give the pipeline a seed"):
        Pipeline(toys.merged_network(3), methods.PETRA, channel=channel)
    with pytest.raises(ValueError, match="the channel is for 3 stages"):
        Pipeline(toys.merged_network(4), methods.PETRA, seed=1, channel=channel)
    test = toys.batches(1)[0][0]
    shared = Pipeline(sliced(), methods.PETRA, optimizer=toys.sgd, seed=7, channel=channel)
    assert torch.equal(shared.evaluate(test), toys.pipeline(sliced()).evaluate(test))
    with pytest.raises(ValueError, match="this channel belongs to another pipeline"):
        Pipeline(sliced(), methods.PETRA, optimizer=toys.sgd, seed=7, channel=channel)
    channel.close()
    cases: list[tuple[Callable[[], list[Stage]], list[Any], list[Any], torch.dtype | None]] = [
        (toys.complex_network, toys.batches(4), toys.batches(3, size=2), None),
        (lambda: narrow(1), [narrow_batch()] * 4, [narrow_batch()] * 2, torch.bfloat16),
        (viewing_network, signed(9), signed(6, size=2), None),
    ]
    for make_stages, data, others, autocast in cases:
        channel, evaluated = ProcessChannel((1, 1)), []
        settings: dict[str, Any] = {"optimizer": toys.sgd, "seed": 7, "autocast": autocast}
        alone = Pipeline(make_stages(), methods.PETRA, **settings)
        shared = Pipeline(make_stages(), methods.PETRA, **settings, channel=channel)
        for pipeline in (alone, shared):
            toys.train(pipeline, data)
            evaluated.append(pipeline.evaluate(data[-1][0]))
            state = pipeline.state_dict()
            toys.train(pipeline, data[:2], drain=False)
            pipeline.load_state_dict(state)
            toys.train(pipeline, others)  # of another size, which once needed a drain
        assert_bitwise_equal(*evaluated)
        assert_bitwise_equal(shared.state_dict()["workers"][rank], alone.state_dict()["workers"][rank])
        channel.close()
    send_many(rank)


@pytest.mark.slow
def test_two_ranks_check_channel_and_release_messages() -> None:
    """Unfit channels raise errors, tensors with unusual layouts arrive, and delivered messages are released."""
    with pytest.raises(RuntimeError, match="init_process_group"):
        ProcessChannel((1,))
    in_processes(2, two_ranks)


def send_many(rank: int) -> None:
    """Send many messages: Gloo only reports one as done to `wait`, so all were once kept until the end of the run."""
    for method in (methods.PETRA, methods.BACKPROPAGATION):
        channel = ProcessChannel((2, 1))
        pipeline = toys.pipeline_of_process(3, method, 1, channel)
        toys.train(pipeline, toys.batches(20), drain=False)
        border = channel._above if rank == 0 else channel._below
        assert border is not None
        sender = border.sender
        under_way = {transfer.micro_batch for transfer in sender._sending}
        assert len(under_way) <= (3 if method.pipelined else 1), "of 20"
        sending = list(sender._sending)
        for _ in range(5):
            pipeline.evaluate(toys.batches(1)[0][0])
        assert list(sender._sending) == sending
        channel.close()
