"""All messages of a tick in one operation at its end, as over NCCL, here over Gloo: the same bits, and nobody hangs."""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from petra_core import Pipeline, methods
from petra_core.distributed import ProcessChannel
from petra_core.distributed.groups import ChannelError
from petra_core.distributed.layout import HEADER_BYTES
from petra_core.distributed.replicas import Replicas
from petra_core.methods import Method
from petra_core.models import sequential
from petra_core.schedule import Action, Clock, Kind, Tick
from petra_core.worker import Message, Worker
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.petra_core.distributed import test_distributed, test_replicated_stages
from tests.petra_core.distributed.test_distributed import in_processes

Batched = partial(ProcessChannel, batched=True)
Parts = tuple[tuple[int, ...], tuple[int, ...]]  # stages of each part, replicas of each part


@pytest.mark.parametrize("partition", [(3, 2), (1, 2, 2)], ids=str)
@pytest.mark.slow
def test_bitwise_equal_to_one_process(partition: tuple[int, ...]) -> None:
    in_processes(len(partition), test_distributed.compare, 5, partition, Batched, methods.PAPER, (2,))


@pytest.mark.slow
def test_random_delays_change_nothing() -> None:
    slow = partial(test_distributed.Slow, batched=True)
    in_processes(3, test_distributed.compare, 6, (2, 2, 2), slow, (methods.PETRA,), (1,))


@pytest.mark.parametrize(
    ("parts", "which"),
    [
        (((2, 2), (2, 1)), [methods.PETRA, methods.DELAYED_GRADIENTS]),
        (((1, 2, 1), (1, 2, 1)), [methods.PETRA]),
        (((2, 2), (2, 2)), [methods.DSP]),
    ],
    ids=["first", "middle", "both"],
)
@pytest.mark.slow
def test_replicated_parts_train_as_one_process_does(parts: Parts, which: list[Method]) -> None:
    in_processes(sum(parts[1]), test_replicated_stages.as_one, parts, 2, which, True)


class Entry(NamedTuple):
    """What a rank has put on its GPU: `tick` only divides, `compute` is an action, the others are operations."""

    kind: str
    group: str = ""
    parts: tuple[Any, ...] = ()  # of a batch ("isend" or "irecv", other rank, number of values); of a mean its ranks


class Shared:
    """One work for a whole batch, as NCCL gives."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    @property
    def waited_for(self) -> bool:
        return not self._works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        while self._works:
            self._works.pop().wait()


@contextlib.contextmanager
def recorded(*, batched: bool) -> Iterator[list[Entry]]:
    """Note what this rank would put on its GPU; a batch has one work, and nothing else is done beside one under way."""
    log: list[Entry] = []
    shared: list[Shared] = []
    batch, all_reduce, broadcast, begin = dist.batch_isend_irecv, dist.all_reduce, dist.broadcast, ProcessChannel.begin

    def noted_batch(operations: list[dist.P2POp]) -> list[Any]:
        works = batch(operations)
        if all(operation.tensor.numel() == HEADER_BYTES for operation in operations):
            return works  # a header, which goes from CPU to CPU
        parts = ((o.op.__name__, o.peer, o.tensor.numel()) for o in operations)
        log.append(Entry("batch", operations[0].group.group_name, tuple(parts)))
        shared.append(Shared(works))
        return [shared[-1]]

    def collective(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(tensor: Tensor, *, group: dist.ProcessGroup, **settings: Any) -> None:
            if tensor.numel() != HEADER_BYTES:
                assert not batched or all(one.waited_for for one in shared)
                log.append(Entry(kind, group.group_name, tuple(dist.get_process_group_ranks(group))))
            call(tensor, group=group, **settings)

        return noted

    def noted_begin(channel: ProcessChannel, tick: Tick) -> None:
        log.append(Entry("tick"))
        begin(channel, tick)

    def action(call: Callable[[Worker, int], Message | None]) -> Callable[[Worker, int], Message | None]:
        def noted(worker: Worker, micro_batch: int) -> Message | None:
            log.append(Entry("compute"))
            return call(worker, micro_batch)

        return noted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", noted_batch)
        patch.setattr(dist, "all_reduce", collective("all_reduce", all_reduce))
        patch.setattr(dist, "broadcast", collective("broadcast", broadcast))
        patch.setattr(ProcessChannel, "begin", noted_begin)
        for name in ("forward", "reconstruct", "backward"):
            patch.setattr(Worker, name, action(getattr(Worker, name)))
        yield log


def comes_to_an_end(logs: list[list[Entry]]) -> bool:
    """Whether GPUs of which each does one thing after the other get through: the most that one has to be ready for."""
    queues = [deque((e, list(e.parts)) for e in log if e.group) for log in logs]

    def advance(rank: int) -> bool:
        entry, parts = queues[rank][0]
        if entry.kind != "batch":
            here = all(queues[other] and queues[other][0][0] == entry for other in parts)
            for other in parts if here else ():
                queues[other].popleft()
            return here
        for part in parts:
            kind, other, size = part
            counterpart = ("irecv" if kind == "isend" else "isend", rank, size)
            theirs, their_parts = queues[other][0] if queues[other] else (None, [])
            if theirs is not None and theirs.group == entry.group and counterpart in their_parts:
                # In order: what one sends first, the other receives first.
                assert next(p for p in their_parts if p[:2] == counterpart[:2]) == counterpart
                assert next(p for p in parts if p[:2] == part[:2]) == part
                parts.remove(part)
                their_parts.remove(counterpart)
                for side in (rank, other):
                    if not queues[side][0][1]:
                        queues[side].popleft()
                return True
        return False

    while any(queues):
        if not any(advance(rank) for rank, queue in enumerate(queues) if queue):
            return False
    return True


def gathered(log: list[Entry]) -> list[list[Entry]]:
    logs: list[list[Entry]] = [[]] * dist.get_world_size()
    dist.all_gather_object(logs, log)
    return logs


def in_order(rank: int, parts: Parts, method: Method, rows: int) -> None:
    """Rank i of a row has the pipeline's rank i; rows are replicas of the network."""
    partition, counts = parts
    width = sum(counts)
    row = range(rank // width * width, (rank // width + 1) * width)
    replicas = Replicas(range(rank % width, rows * width, width))
    data = toys.batches(11)
    for batched in (True, False):
        with recorded(batched=batched) as log:
            channel = ProcessChannel(partition, replicas=counts, ranks=row, batched=batched)
            replicas.before = channel.settle
            before = replicas.average_gradients if rows > 1 else None
            pipeline = Pipeline(
                toys.network(sum(partition)),
                method,
                accumulation=2,
                optimizer=toys.sgd,
                seed=7,
                channel=channel,
                before_update=before,
            )
            if batched:
                assert [e.kind for e in log] == ["batch"], "the greeting"
                log.append(Entry("tick"))
            toys.train(pipeline, data[:8], drain=False)
            assert not batched or all(tick_in_order(tick) for tick in ticks(log))
            before_evaluation = len(log)
            with replicas.averaged_statistics(sequential(pipeline.stages)), pipeline.averaged_statistics():
                pipeline.evaluate(data[0][0])
                pipeline.evaluate(data[1][0])
            after_evaluation = len(log)
            toys.train(pipeline, data[8:])
            channel.close()
        trained = [*log[:before_evaluation], *log[after_evaluation:]]
        if batched:
            assert sum(e.kind == "batch" for e in trained) > 8, "messages too, and not the greeting alone"
            assert all(tick_in_order(tick) for tick in ticks(trained))
            assert len({e.group for e in log if e.kind in ("batch", "broadcast")}) == 1
            assert comes_to_an_end(gathered(log))
        else:  # which is why
            assert not comes_to_an_end(gathered(log))


def ticks(log: list[Entry]) -> list[list[str]]:
    kinds: list[list[str]] = [[]]
    for entry in log:
        if entry.kind == "tick":
            kinds.append([])
        else:
            kinds[-1].append(entry.kind)
    return kinds[2:]  # after the greeting


def tick_in_order(tick: list[str]) -> bool:
    """Actions, and means of gradients, then at most one operation."""
    *first, last = tick or ["compute"]
    return {*first} <= {"compute", "all_reduce"} and last in ("compute", "all_reduce", "batch")


@pytest.mark.parametrize(
    ("parts", "method", "rows"),
    [
        (((2, 1), (1, 1)), methods.PETRA, 1),
        (((1, 2, 1), (1, 1, 1)), methods.PETRA, 1),
        (((1, 2), (1, 1)), methods.DELAYED_GRADIENTS, 2),
        (((2, 2), (2, 1)), methods.PETRA, 1),
        (((1, 1, 2), (1, 2, 1)), methods.DSP, 1),
    ],
    ids=["two", "three", "replicas", "first-replicated", "middle-replicated"],
)
@pytest.mark.slow
def test_all_ranks_issue_one_operation_a_tick_in_an_order_that_comes_to_an_end(
    parts: Parts, method: Method, rows: int
) -> None:
    in_processes(sum(parts[1]) * rows, in_order, parts, method, rows)


def on_a_gpu(rank: int) -> None:
    backends, made = [], dist.new_group

    def new_group(ranks: list[int], patience: timedelta, backend: str, **settings: Any) -> dist.ProcessGroup:
        backends.append(backend)
        return made(ranks, patience, "gloo", **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", new_group)
        patch.setattr(ProcessChannel, "_greet", lambda channel, peers: None)
        channels = [ProcessChannel((1, 1), wire=torch.device(wire)) for wire in ("cuda", "cpu")]
    assert backends == ["cpu:gloo,cuda:nccl", "gloo"]  # one group each
    assert [channel._exchange.batched for channel in channels] == [True, False]


@pytest.mark.slow
def test_it_is_the_way_of_nccl_and_layouts_that_do_not_agree_are_both_named() -> None:
    in_processes(2, on_a_gpu)
    in_processes(2, disagree)


def disagree(rank: int) -> None:
    """A later message of another layout, and an answer of another layout than what it answers, name both layouts."""
    first = torch.zeros(2, 3)
    others = ((torch.zeros(2, 4), r"\(2, 3\)", r"\(2, 4\)"), (first.double(), "float32", "float64"))
    for batched, (other, had, has) in itertools.product((False, True), others):
        channel = ProcessChannel((1, 1), batched=batched)
        clock = Clock(methods.PETRA, 2, 1)
        channel.begin(clock.tick(enter=True))
        if rank == 0:
            channel.send(1, Message(0, (first,)))
        channel.end()
        channel.begin(clock.tick(enter=True))
        if rank == 0:
            later = f"micro-batch 1 from stage 0 to stage 1 has the layout .*{has}.*, those before it had .*{had}"
            with pytest.raises(ChannelError, match=later):
                channel.send(1, Message(1, (other,)))
            answer = f"stage 0 on rank 0 sends stage 1 on rank 1 .*{had}.*, and what comes back .*{has}"
            with pytest.raises(ChannelError, match=answer):
                channel.end()
        else:
            [message] = channel.collect(1, Action(Kind.FORWARD, 0))
            assert_bitwise_equal(message.streams, (first,))
            channel.send(0, Message(0, (first,), (other,)))
            channel.end()
        dist.barrier()


class Failing:
    """A work that does not end."""

    def wait(self) -> None:
        raise RuntimeError("timed out")


def lose_one_of_two(rank: int) -> None:
    channel = Batched((1, 1, 1), patience=timedelta(seconds=9))
    if rank == 1:
        exchange = channel._exchange
        ways = (*channel._from_below.values(), *channel._from_above.values())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "batch_isend_irecv", lambda operations: [Failing()])
            transfers = [exchange.receive(torch.zeros(1), way._peer, 5 + number) for number, way in enumerate(ways)]
            exchange.end()
        below, above = (
            f"stage 1 on rank 1 lost stage {other} on rank {other} over the message of micro-batch {number}"
            for other, number in ((0, 5), (2, 6))
        )
        for transfer in transfers:
            with pytest.raises(ChannelError, match=rf"^{below}, or {above}: .* silent for 9 s \(timed out\)$"):
                transfer.wait()
    channel.close()


@pytest.mark.slow
def test_of_an_operation_with_several_neighbours_all_are_named_when_one_is_lost() -> None:
    in_processes(3, lose_one_of_two)


def evaluate_while_it_fills(rank: int) -> None:
    """The lowest rank has only sent by then: its operation has no receive that tells when it is over."""
    [(images, labels)] = toys.batches(1)
    with recorded(batched=True) as log:
        channel = ProcessChannel((2, 1), batched=True)
        pipeline = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, seed=7, channel=channel)
        for _ in range(2):
            pipeline.step(images, labels)
        pipeline.evaluate(images)
        channel.close()
    assert comes_to_an_end(gathered(log))


@pytest.mark.slow
def test_an_evaluation_waits_for_what_is_under_way() -> None:
    in_processes(2, evaluate_while_it_fills)


def second_row(rank: int) -> None:
    if rank:
        channel = ProcessChannel((1, 1), ranks=[1, 2])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "batch_isend_irecv", lambda operations: [Failing()])
            transfer = channel._exchange.receive(torch.zeros(1), channel._inlets[0]._peer, 5)
        with pytest.raises(ChannelError, match=rf"on rank {rank} lost stage {2 - rank} on rank {3 - rank} over"):
            transfer.wait()
        channel.close()


@pytest.mark.slow
def test_who_is_lost_is_named_by_the_rank_that_everybody_knows() -> None:
    in_processes(3, second_row)


def close_while_it_travels(rank: int) -> None:
    """What is sent last is more than a connection takes up before anybody reads it."""
    channel = ProcessChannel((1, 1))
    channel.begin(Clock(methods.PETRA, 2, 1).tick(enter=True))
    if rank == 0:
        channel.send(1, Message(0, (torch.zeros(20_000_000),)))
    else:
        time.sleep(0.5)
    channel.end()
    channel.close()


@pytest.mark.slow
def test_a_channel_is_closed_when_the_last_message_has_arrived() -> None:
    in_processes(2, close_while_it_travels)
