"""Stages replicated over several processes that take turns: the training of one process under the same clock."""

import copy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from petra_core import HeadStage, Pipeline, ReversibleStage, Stage, methods
from petra_core.ages import ages, of_stages
from petra_core.distributed import ProcessChannel
from petra_core.distributed.groups import ChannelError
from petra_core.errors import CheckpointError, ScheduleError
from petra_core.methods import Method
from petra_core.models import ConcatStreams
from petra_core.schedule import Clock, Kind, Schedule, generate
from petra_core.shares import places
from petra_core.validation import validate
from petra_core.worker import Backward
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.petra_core.distributed.test_distributed import in_processes, of_process
from tests.schedules import parse

Parts = tuple[tuple[int, ...], tuple[int, ...]]  # stages of each part, replicas of each part


HEAVY_MIDDLE = """
    PETRA J=3 k=2 r=1,2,1
    tick  0 | F0       | -        | -
    tick  1 | F1       | F0       | -
    tick  2 | F2       | F1       | -
    tick  3 | F3       | F2       | -
    tick  4 | -        | F3       | F0 B0
    tick  5 | -        | R0 B0    | F1 B1 U0
    tick  6 | -        | R1 B1 U0 | F2 B2
    tick  7 | -        | R2 B2    | F3 B3 U1
    tick  8 | R0 B0    | R3 B3 U1 | -
    tick  9 | R1 B1 U0 | -        | -
    tick 10 | R2 B2    | -        | -
    tick 11 | R3 B3 U1 | -        | -
"""


def test_two_devices_in_turn_have_two_ticks_for_a_turn_and_wait_one_for_each_other() -> None:
    schedule = generate(methods.PETRA, 3, 4, 2, (1, 2, 1))
    assert schedule == parse(HEAVY_MIDDLE)
    assert parse(str(schedule)) == schedule
    validate(schedule)
    assert ages(3, (1, 2, 1)) == ([0, 1, 4], [8, 5, 4])
    assert of_stages((2, 1), (3, 1)) == (3, 3, 1)


def test_one_replica_of_each_is_the_usual_clock() -> None:
    for method, stages in ((methods.BACKPROPAGATION, 5), (methods.PETRA, 1), (methods.PETRA, 5)):
        assert generate(method, stages, 9, 2, [1] * stages) == generate(method, stages, 9, 2)
        assert Clock(method, stages, 2, [1] * stages).state_dict() == Clock(method, stages, 2).state_dict()


@pytest.mark.parametrize(
    ("method", "replicas"),
    [(methods.DELAYED_GRADIENTS, (1, 2, 3, 6)), (methods.PETRA, (2, 1, 1, 1)), (methods.PETRA, (1, 3, 3, 1))],
    ids=str,
)
def test_a_schedule_with_replicas_is_valid_and_has_the_delays_of_the_rule(
    method: Method, replicas: tuple[int, ...]
) -> None:
    schedule = generate(method, 4, 30, 6, replicas)
    validate(schedule)
    forward, backward = ages(4, replicas)
    for stage in range(4):
        ticks = {
            (action.kind, action.number): number
            for number, tick in enumerate(schedule.ticks)
            for action in tick[stage]
            if action.kind in (Kind.FORWARD, Kind.BACKWARD)
        }
        delays = {ticks[Kind.BACKWARD, m] - ticks[Kind.FORWARD, m] for m in range(30)}
        assert delays == {backward[stage] - forward[stage]}
    usual = generate(methods.PETRA, 3, 4, 2)
    with pytest.raises(ScheduleError, match=r"tick 2, stage 2, F0: needs F0 at stage 1 at least 2 ticks before"):
        validate(Schedule(usual.method, 3, 2, usual.ticks, replicas=(1, 2, 1)))


def test_a_clock_goes_on_only_with_as_many_replicas() -> None:
    clock = Clock(methods.PETRA, 3, 2, (1, 2, 1))
    for _ in range(7):
        clock.tick(enter=True)
    again = Clock(methods.PETRA, 3, 2, (1, 2, 1))
    again.load_state_dict(clock.state_dict())
    assert [again.tick(enter=True) for _ in range(9)] == [clock.tick(enter=True) for _ in range(9)]
    assert again.in_flight == clock.in_flight
    with pytest.raises(CheckpointError, match=r"has replicas \[1, 2, 1\], this pipeline has 'one each'"):
        Clock(methods.PETRA, 3, 2).load_state_dict(clock.state_dict())


@pytest.mark.parametrize(
    ("method", "k", "replicas", "message"),
    [
        (methods.PETRA, 3, (1, 2, 1), r"2 replicas share the k=3 micro-batches .* \(remainder 1\)"),
        (methods.PETRA, 2, (1, 2), "each of the 3 stages has at least one replica, got \\(1, 2\\)"),
        (methods.PETRA, 2, (1, 0, 1), "each of the 3 stages has at least one replica, got \\(1, 0, 1\\)"),
        (methods.BACKPROPAGATION, 2, (1, 2, 1), "BACKPROPAGATION lets one micro-batch pass at a time"),
    ],
)
def test_what_does_not_fit_is_refused(method: Method, k: int, replicas: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pipeline(toys.network(3), method, accumulation=k, replicas=replicas)


def test_places() -> None:
    assert places((4, 6), (2, 1), 3) == [range(2), range(2, 3)]
    with pytest.raises(ValueError, match=r"the parts \(4, 6\) with \(2, 1\) replicas are for 3 ranks, and there are 2"):
        places((4, 6), (2, 1), 2)
    with pytest.raises(ValueError, match=r"each of the 2 parts has at least one replica, got \(2, 0\) for \(4, 6\)"):
        places((4, 6), (2, 0), 2)


def make(
    stages: list[Stage],
    method: Method,
    k: int,
    replicas: tuple[int, ...] | None = None,
    channel: ProcessChannel | None = None,
    **settings: Any,
) -> Pipeline:
    stages = of_process(copy.deepcopy(stages), channel)
    return Pipeline(
        stages, method, accumulation=k, optimizer=toys.sgd, seed=7, replicas=replicas, channel=channel, **settings
    )


def test_gradients_are_those_of_weights_as_old_as_the_rule_says() -> None:
    """Two stages, the lower one on two devices: autograd at the weights that either had at its forward."""
    torch.manual_seed(0)
    lower = ReversibleStage(nn.Conv2d(2, 2, 3, padding=1)).double()
    upper = HeadStage(nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))).double()
    data = [((x[:, :2], x[:, 1:]), y) for x, y in toys.batches(12)]
    seen: dict[int, dict[str, torch.Tensor]] = {}

    def note(backward: Backward) -> None:
        if backward.stage == 0:
            seen[backward.micro_batch] = {name: g.clone() for name, g in backward.gradients.items()}

    weights: list[list[dict[str, torch.Tensor]]] = [[], []]  # of each stage by version

    def keep(index: int, version: int, stage: Stage) -> None:
        weights[index].append({name: p.detach().clone() for name, p in stage.named_parameters()})

    pipeline = make([lower, upper], methods.DELAYED_GRADIENTS, 2, (2, 1), after_backward=note, before_update=keep)
    toys.train(pipeline, data, drain=False)
    forward, backward = ages(2, (2, 1))
    assert (forward, backward) == ([0, 3], [4, 3])
    for m, gradients in seen.items():
        # Updates that came before: of stage j those whose last backward, of 2u + 1, was at an earlier tick.
        old = sum(2 * u + 1 + backward[0] < m + forward[0] for u in range(9))
        at_head = sum(2 * u + 1 + backward[1] < m + forward[1] for u in range(9))
        for stage, version, versions in ((lower, old, weights[0]), (upper, at_head, weights[1])):
            stage.load_state_dict(versions[version])
        lower.zero_grad()
        inputs, target = data[m]
        nn.functional.cross_entropy(upper(lower(inputs)), target).backward()
        assert_close(gradients, {name: p.grad for name, p in lower.named_parameters()})
    assert len(seen) == 8


BATCHES = 17


def as_one(rank: int, parts: Parts, k: int, which: list[Method], batched: bool = False) -> None:
    """Losses, weights, evaluation and the resumed run of the processes, against one that does what all would do."""
    partition, counts = parts
    # With dropout: each replica has a stream of its own, also where one process does what all would do.
    stages = toys.network(sum(partition), dropout=0.2, norm=False)
    data = toys.batches(BATCHES + 8)
    for method in which:
        channel, fresh = (ProcessChannel(partition, replicas=counts, batched=batched) for _ in range(2))
        alone = make(stages, method, k, of_stages(partition, counts))
        shared = make(stages, method, k, None, channel)
        with shared.recording() as recording:
            losses = [shared.step(x, y) for x, y in data[:BATCHES]]
        expected = [alone.step(x, y) for x, y in data[:BATCHES]]
        count = counts[-1]
        fill = ages(sum(partition), of_stages(partition, counts))[0][-1]
        for tick, (mine, theirs) in enumerate(zip(losses, expected, strict=True)):
            has_it = channel.stages.stop == sum(partition) and (tick - fill) % count == channel.replica
            assert (mine is not None) == (theirs is not None and has_it)
            if mine is not None:
                assert_close(mine, theirs, 1e-12)
        validate(recording.schedule, complete=False)
        assert_close(shared.evaluate(data[0][0]), alone.evaluate(data[0][0]), 1e-12)
        resumed = make(
            toys.network(sum(partition), dropout=0.2, norm=False), method, k, None, fresh
        )  # has sent nothing
        resumed.load_state_dict(shared.state_dict())
        for pipeline in (shared, resumed, alone):
            toys.train(pipeline, data[BATCHES:])
        for index in channel.stages:
            mine, again, theirs = (p.stages[index].state_dict() for p in (shared, resumed, alone))
            assert_close(mine, theirs, 1e-12)
            assert_bitwise_equal(again, mine)
        channel.close()
        fresh.close()


@pytest.mark.parametrize(
    ("parts", "k", "which"),
    [
        (((2, 2), (2, 1)), 2, [methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS]),
        (((1, 3, 1), (1, 2, 1)), 4, [methods.PETRA]),
        (((2, 2), (2, 2)), 2, [methods.PETRA]),
        (((1, 1, 2), (1, 3, 1)), 3, [methods.APPROXIMATE_INPUTS]),
        (((3,), (2,)), 2, [methods.PETRA]),
    ],
    ids=["first", "middle", "head", "three", "data-parallel"],
)
@pytest.mark.slow
def test_several_processes_train_as_one_does_under_the_same_clock(parts: Parts, k: int, which: list[Method]) -> None:
    in_processes(sum(parts[1]), as_one, parts, k, which)


def odd_ones(rank: int) -> None:
    """Replicas in unequal numbers on both sides, an evaluation before anything else, statistics, what is refused."""
    channel, fresh = (ProcessChannel((2, 2), replicas=(2, 1)) for _ in range(2))
    stages = toys.network(4, dropout=0.2)
    for wrong, message in ((methods.REVERSIBLE_BACKPROPAGATION, "lets one micro-batch pass"), (methods.PETRA, "k=3")):
        with pytest.raises(ValueError, match=message):
            make(stages, wrong, 3, None, channel)
    with pytest.raises(ValueError, match="the channel knows the replicas of each stage"):
        make(stages, methods.PETRA, 2, (2, 2, 1, 1), channel)
    pipeline = make(stages, methods.PETRA, 2, None, channel)
    data = toys.batches(9)
    first = pipeline.step(*data[0])
    assert first is None
    pipeline.step(*data[1])
    before = pipeline.evaluate(data[0][0])  # while the first messages are on their way
    plain = make(stages, methods.PETRA, 2)
    plain.step(*data[0])
    assert before.shape == plain.evaluate(data[0][0]).shape
    everybodys = make(stages, methods.PETRA, 2, (2, 2, 1, 1)).state_dict()  # which has both replicas' random streams
    other_pipeline = make(stages, methods.PETRA, 2, None, fresh)  # on every rank: they compare their settings
    if rank < 2:
        with pytest.raises(CheckpointError, match=r"state of stage 0 .*: it is of 2 replicas of the stage, here are 1"):
            other_pipeline.load_state_dict(everybodys)
    toys.train(pipeline, data[2:], drain=False)
    buffers = [buffer.clone() for buffer in pipeline.stages[0].buffers()] if rank < 2 else []
    with pipeline.averaged_statistics():
        means = [buffer.clone() for buffer in pipeline.stages[0].buffers()] if rank < 2 else []
    if rank < 2:
        assert not torch.equal(buffers[0], means[0])
        assert_bitwise_equal([*pipeline.stages[0].buffers()], buffers)
    with pipeline.averaged_statistics():
        one, other = pipeline.evaluate(data[0][0]), pipeline.evaluate(data[0][0])
    assert_bitwise_equal(one, other)
    assert_bitwise_equal(one, pipeline.evaluate(data[0][0]))
    channel.close()
    fresh.close()


@pytest.mark.slow
def test_replicas_have_statistics_of_their_own_and_evaluate_with_the_mean() -> None:
    in_processes(3, odd_ones)


def lose(rank: int, batched: bool) -> None:
    channel = ProcessChannel((2, 2), replicas=(2, 1), patience=timedelta(seconds=2), batched=batched)
    pipeline = make(toys.network(4, dropout=0.2, norm=False), methods.PETRA, 2, None, channel)
    data = toys.batches(20)
    toys.train(pipeline, data[:10], drain=False)
    dist.barrier()
    if rank == 1:
        return  # without a word
    who = (
        r"stage 2 on rank 2 lost stage 1 on rank 1 over the message of micro-batch \d*[13579]" if rank == 2 else "lost"
    )
    with pytest.raises(ChannelError, match=who):
        toys.train(pipeline, data[10:], drain=False)


@pytest.mark.parametrize("batched", [False, True], ids=["at once", "batched"])
@pytest.mark.slow
def test_a_replica_that_is_lost_is_named(batched: bool) -> None:
    in_processes(3, lose, batched)
