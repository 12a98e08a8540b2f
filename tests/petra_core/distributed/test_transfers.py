"""Test messages between processes: the order of waiting, layouts that do not match, and lost processes."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from petra_core import Pipeline, methods
from petra_core.distributed import ProcessChannel, process_channel
from petra_core.distributed.groups import ChannelError
from petra_core.distributed.layout import HEADER_BYTES, TensorLayout
from petra_core.distributed.neighbours import Receiver
from petra_core.distributed.transfers import Neighbour
from petra_core.messages import Message
from petra_core.staleness import Action, Kind
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import in_processes


def ahead_of_the_rank_above(rank: int, vectors: Sequence[tuple[int, ...]]) -> None:
    """Let rank 0 end step m + gap - 1 before rank 1 begins step m: waiting for any further message would deadlock."""
    for staleness in vectors:
        run_ahead(rank, staleness)


def run_ahead(rank: int, staleness: tuple[int, ...]) -> None:
    gap, count = staleness[1] - staleness[2], 9
    channel = ProcessChannel((2, 1), compare_every=None)  # a comparison waits for all ranks
    pipeline = Pipeline(
        toys.network(3), methods.PETRA, optimizer=toys.sgd, seed=7, channel=channel, staleness=staleness
    )
    data = toys.batches(count)
    for step in range(count + gap):
        if rank == 1 and step >= gap:
            pipeline.step(*data[step - gap])
        dist.barrier()
        if rank == 0 and step < count:
            pipeline.step(*data[step])
        dist.barrier()
    pipeline.drain()
    alone = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, seed=7, staleness=staleness)
    toys.train(alone, data)
    own_stages = channel.stages
    for index in own_stages:
        assert_bitwise_equal(pipeline.state_dict()["workers"][index], alone.state_dict()["workers"][index])
    channel.close()


@pytest.mark.slow
def test_rank_waits_only_for_messages_it_needs() -> None:
    """A rank that is ahead by the gap in staleness does not deadlock, so it waits for no other message."""
    in_processes(2, ahead_of_the_rank_above, [(4, 2, 0), (2, 1, 0), (5, 4, 0)])


def on_a_gpu(rank: int) -> None:
    groups, made, wires = [], dist.new_group, [torch.device("cuda", rank), torch.device("cpu")]

    def new_group(
        ranks: list[int], patience: timedelta, backend: str, *, device_id: torch.device | None, **settings: Any
    ) -> dist.ProcessGroup:
        groups.append((backend, device_id))
        return made(ranks, patience, "gloo", **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", new_group)
        patch.setattr(ProcessChannel, "_handshake", lambda channel: None)
        channels = [ProcessChannel((1, 1), comm_device=wire) for wire in wires]
    assert groups == [*[("cpu:gloo,cuda:nccl", wires[0])] * 2, *[("gloo", None)] * 2], "upwards and downwards"
    for channel, early in zip(channels, (False, True), strict=True):
        border = channel._below or channel._above
        assert border is not None
        upwards = border.sender if border is channel._above else border.receiver
        assert upwards.neighbour.ahead is early
    disagree(rank)


@pytest.mark.slow
def test_directions_have_groups_and_layout_errors_name_both() -> None:
    """Each direction has a group with the GPU of this process, and a layout mismatch raises an error with both."""
    in_processes(2, on_a_gpu)


READY = 7  # tag with which a receiver tells the sender that it has begun


class LikeNccl:
    """`dist.isend` and `dist.irecv` with the waiting of NCCL, over Gloo.

    A stream for each group executes its transfers in order, each when both ranks have begun it. The host waits for the
    first transfer of two ranks in a group. Headers are sent over Gloo as usual.
    """

    def __init__(self) -> None:
        self._isend, self._irecv = dist.isend, dist.irecv
        self._streams: dict[dist.ProcessGroup, ThreadPoolExecutor] = {}
        self._connected: set[tuple[dist.ProcessGroup, int]] = set()

    def isend(self, tensor: Tensor, *, group_dst: int, group: dist.ProcessGroup, tag: int) -> Any:
        ready = partial(self._irecv, torch.zeros(1), group_src=group_dst, group=group, tag=READY)
        send = partial(self._isend, tensor, group_dst=group_dst, group=group, tag=tag)
        return send() if tensor.numel() == HEADER_BYTES else self._enqueue(ready, send, group=group, peer=group_dst)

    def irecv(self, tensor: Tensor, *, group_src: int, group: dist.ProcessGroup, tag: int) -> Any:
        ready = partial(self._isend, torch.zeros(1), group_dst=group_src, group=group, tag=READY)
        receive = partial(self._irecv, tensor, group_src=group_src, group=group, tag=tag)
        return (
            receive() if tensor.numel() == HEADER_BYTES else self._enqueue(ready, receive, group=group, peer=group_src)
        )

    def _enqueue(self, *operations: Callable[[], Any], group: dist.ProcessGroup, peer: int) -> Any:
        def transfer() -> None:
            for operation in operations:
                operation().wait()

        future = self._streams.setdefault(group, ThreadPoolExecutor(1)).submit(transfer)
        if (group, peer) not in self._connected:
            self._connected.add((group, peer))
            future.result()
        return SimpleNamespace(wait=future.result)


def pause_over_nccl(rank: int) -> None:
    """Stop all ranks after the same step with messages in flight, as for an evaluation, and continue."""
    data, like_nccl = toys.batches(12), LikeNccl()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "isend", like_nccl.isend)
        patch.setattr(dist, "irecv", like_nccl.irecv)
        patch.setattr(Receiver, "_post_early", lambda *_: None)
        patch.setattr(process_channel, "Neighbour", lambda *given, ahead=False: Neighbour(*given))
        channel = ProcessChannel((1, 1, 1), timeout=timedelta(seconds=100), compare_every=None)
        pipeline = toys.pipeline_of_process(3, methods.PETRA, 1, channel)
        toys.train(pipeline, data[:9], drain=False)
        dist.barrier()
        toys.train(pipeline, data[9:])
        channel.close()
    alone = toys.pipeline_of_process(3, methods.PETRA, 1)
    toys.train(alone, data)
    assert_bitwise_equal(pipeline.state_dict()["workers"][rank], alone.state_dict()["workers"][rank])


@pytest.mark.slow
def test_ranks_pause_in_flight_with_waiting_of_nccl() -> None:
    """No rank waits for a message behind one that its receiver takes later. The middle rank once did so forever."""
    in_processes(3, pause_over_nccl)


def disagree(rank: int) -> None:
    """Check that the error for a later message or an answer of another layout names both layouts."""
    first = torch.zeros(2, 3)
    others = ((torch.zeros(2, 4), r"\(2, 3\)", r"\(2, 4\)"), (first.double(), "float32", "float64"))
    for other, had, has in others:
        channel = ProcessChannel((1, 1))
        channel.staleness = (2, 0)
        if rank == 0:
            channel.expect(None, 0)
            channel.send(1, Message(0, (first,)))
            later = f"micro-batch 1 from stage 0 to stage 1 has the layout .*{has}.*, earlier messages had .*{had}"
            with pytest.raises(ChannelError, match=later):
                channel.send(1, Message(1, (other,)))
            answer = f"stage 0 on rank 0 sends stage 1 on rank 1 .*{had}.*, but receives gradients .*{has}"
            with pytest.raises(ChannelError, match=answer):
                channel.collect(0, Action(Kind.BACKWARD, 0))
        else:
            channel.expect(0, None)
            [message] = channel.collect(1, Action(Kind.FORWARD, 0))
            assert_bitwise_equal(message.streams, (first,))
            channel.send(0, Message(0, (first,), (other,)))
        dist.barrier()


class Failing:
    """A `dist.Work` that times out."""

    def wait(self) -> None:
        raise RuntimeError("timed out")


def second_row(rank: int) -> None:
    if rank:
        channel = ProcessChannel((1, 1), ranks=[1, 2], timeout=timedelta(seconds=9))
        border = channel._below or channel._above
        assert border is not None
        receiver = Receiver(dataclasses.replace(border.receiver.neighbour, ahead=True))
        receiver._layouts = ((TensorLayout.of_tensor(torch.zeros(1)),), None)
        works = iter([SimpleNamespace(wait=lambda: None), Failing(), Failing()])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "irecv", lambda *_, **__: next(works))
            receiver.expect(4)
            receiver.take(4)
            receiver.expect(5)  # its receive was posted in the step before
        words = (
            rf"on rank {rank} lost stage {2 - rank} on rank {3 - rank} while waiting for .* micro-batch 5: .* for 9 s"
        )
        with pytest.raises(ChannelError, match=words):
            receiver.take(5)
        channel.close()
    dist.barrier()  # rank 0 has the store through which the others connect


@pytest.mark.slow
def test_lost_process_is_named_by_global_rank() -> None:
    """The error about a lost process names its stage, its global rank and the message that does not arrive."""
    in_processes(3, second_row)


def close_while_it_travels(rank: int) -> None:
    """Close the channel after sending more than a connection buffers before the receiver reads."""
    channel = ProcessChannel((1, 1))
    channel.staleness = (2, 0)
    if rank == 0:
        channel.send(1, Message(0, (torch.zeros(20_000_000),)))
    else:
        channel.expect(0, None)
        time.sleep(0.5)
    channel.close()


@pytest.mark.slow
def test_close_with_message_in_flight_succeeds() -> None:
    """A channel closes without an error while a large message is in flight."""
    in_processes(2, close_while_it_travels)
