"""A pipeline over several processes, by torch.distributed (Gloo on the CPU, NCCL on GPUs).

The obvious way, one process that tells the others what to do, makes it the slowest of all. Here every rank runs the
same clock (`petra_core.schedule`) over the same number of micro-batches, so that each knows by itself what its
neighbours do in a tick, and there is no traffic but the messages between neighbouring stages:

    rank 0  stages 0..2          rank 1  stages 3..5
    ───────────────────          ───────────────────
    tick t: F B of 0, 1          tick t: F B of 4, 5
            wait for B of t-1            wait for F of t-1
            F B of 2 ──────── x ──────▶  F B of 3
                     ◀──── x~, dx ─────

A message that is sent in a tick is used in the next one, at its end: the stages at the border come last in a turn, so
that a message has the time of all other stages to travel in. Receives are posted before the tick that brings them.
Upward and downward messages have a process group each, and evaluations a third: on NCCL that is a communicator and a
stream each, so that neither direction waits for the other, nor for the kernels of the stages. NCCL connects two ranks
at their first message, and both wait for that: in a pipeline that goes on full from a checkpoint, neighbours would wait
for each other. So all greet each other once, upwards and downwards, before the clock runs. (Gloo has been tried as far
as the tests go; NCCL has been written by its documentation, and no machine with two GPUs has run it.)

A neighbour that is silent for longer than `patience` is taken for lost, whether it has died or hangs.

Results depend on the order of each stage's own actions and on the contents of the messages alone, never on timing:
they are, bit for bit, those of one process. What is sent has the strides that it has in one process too, because other
strides may mean other kernels, which round differently.

This module exports ChannelError, ProcessChannel, new_group.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.channel import Channel
from petra_core.errors import PetraError
from petra_core.layout import HEADER_BYTES, Layouts, dense, flat, header_of, layout_of, layouts_in
from petra_core.schedule import Kind, Tick
from petra_core.shares import owned
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["ChannelError", "ProcessChannel", "new_group"]

#: Messages in one direction that may be on their way. Gloo says that one has arrived only to who waits for it, and what
#: is not waited for is kept for ever. Once a pipeline is full, the message before the last has arrived in any case: the
#: neighbour used it before it sent what was just received. One that fills is held up, not for long.
MAY_TRAVEL = 2
ALONE = -1  # in place of the number of a micro-batch: of an evaluation, or of the greeting
CPU = torch.device("cpu")
PATIENCE = timedelta(minutes=5)


class ChannelError(PetraError, RuntimeError):
    """A message did not come, or does not fit."""


def new_group(ranks: Sequence[int], wire: torch.device, patience: timedelta) -> dist.ProcessGroup:
    """A group of some ranks, in which tensors of the device `wire` are sent; every one of them calls this.

    Left to itself torch gives a group half an hour of patience, whatever that of the default group is.
    """
    backend = "nccl" if wire.type == "cuda" else "gloo"
    group = dist.new_group(list(ranks), patience, backend, use_local_synchronization=True)
    assert not isinstance(group, int)  # that stands for a rank which is not in the group
    return group


class ProcessChannel(Channel):
    """The channel of this process, one of the ranks of a pipeline.

    Every rank of the pipeline makes one, in the same order among other collective calls.

    Args:
        partition: the number of stages of each rank of the pipeline, such as (4, 3, 3).
        ranks: the pipeline's, in torch.distributed's default group, rising; None: all.
        wire: the device on which messages are sent: the GPU of this process, over NCCL, or the CPU, over Gloo.
        patience: how long a message is waited for.

    Raises:
        ValueError: the partition does not fit the number of ranks, or gives a rank no stage.
        RuntimeError: torch.distributed is not initialised.
        ChannelError: a neighbour does not answer.

    """

    def __init__(
        self,
        partition: Sequence[int],
        *,
        ranks: Sequence[int] | None = None,
        wire: torch.device = CPU,
        patience: timedelta = PATIENCE,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group before")
        ranks = range(dist.get_world_size()) if ranks is None else ranks
        self._place, self._top = list(ranks).index(dist.get_rank()), len(ranks) - 1
        self.stages, self.count = owned(partition, len(ranks))[self._place], sum(partition)
        self._wire = wire
        up, down, self._all = (new_group(ranks, wire, patience) for _ in range(3))
        below = _Peer(self._place - 1, self.stages.start - 1, self.stages.start, patience)
        above = _Peer(self._place + 1, self.stages.stop, self.stages.stop - 1, patience)
        self._from_below, self._to_below = _Inlet(below, up, wire), _Outlet(below, down, wire)
        self._from_above, self._to_above = _Inlet(above, down, wire), _Outlet(above, up, wire)
        self._greet()

    def _greet(self) -> None:
        """Connect to the neighbours: upwards, then downwards, so that nobody waits for one who waits for him."""
        hello = torch.zeros(1)
        if self._place > 0:
            self._from_below.take_alone()
        if self._place < self._top:
            self._to_above.send_alone((hello,))
            self._from_above.take_alone()
        if self._place > 0:
            self._to_below.send_alone((hello,))

    def begin(self, number: int, tick: Tick) -> None:
        """Post the receives of what the neighbours send in this tick."""
        if self.stages.start > 0:
            for action in tick[self.stages.start - 1]:
                if action.kind is Kind.FORWARD:
                    self._from_below.post(number, action.number)
        if self.stages.stop < self.count:
            for action in tick[self.stages.stop]:
                if action.kind is Kind.BACKWARD:
                    self._from_above.post(number, action.number)

    def send(self, stage: int, message: Message) -> None:
        """Post the send of a message; the tensors are kept until they are gone."""
        (self._to_below if stage < self.stages.start else self._to_above).send(message)

    def collect(self, stage: int, before: int) -> list[Message]:
        """Wait for what was sent to `stage` before tick `before`."""
        messages = []
        if stage == self.stages.start:
            messages += self._from_below.take(before)
        if stage == self.stages.stop - 1:
            messages += self._from_above.take(before)
        return messages

    def close(self) -> None:
        """Wait until everything that was sent has arrived; to be called before the process group is destroyed."""
        for outlet in (self._to_below, self._to_above):
            outlet.wait()

    def evaluation_input(self, streams: Streams) -> Streams:
        """Wait for the rank below."""
        return self._from_below.take_alone() if self._place > 0 else streams

    def evaluation_output(self, streams: Streams) -> Streams:
        """Send up, and take part in the highest rank's broadcast."""
        if self._place < self._top:
            self._to_above.send_alone(streams)
        is_top = self._place == self._top
        header = header_of(streams, None) if is_top else torch.empty(HEADER_BYTES, dtype=torch.uint8)
        header = header.to(self._wire)
        dist.broadcast(header, group=self._all, group_src=self._top)
        if not is_top:
            streams = tuple(layout.empty(self._wire) for layout in layouts_in(header)[0] or ())
        for stream in streams:
            dist.broadcast(flat(stream.to(self._wire)), group=self._all, group_src=self._top)
        return streams


@dataclass(frozen=True)
class _Peer:
    """A neighbour.

    Attributes:
        place: its rank in the pipeline.
        stage: its stage at the border.
        own: our stage there.
        patience: how long it is waited for.

    """

    place: int
    stage: int
    own: int
    patience: timedelta

    def lost(self, micro_batch: int, group: dist.ProcessGroup, error: RuntimeError) -> ChannelError:
        """The error that says who lost whom, and over what."""
        what = f"micro-batch {micro_batch}" if micro_batch != ALONE else "an evaluation, or the first contact"
        return ChannelError(
            f"stage {self.own} on rank {dist.get_rank()} lost stage {self.stage} on rank "
            f"{dist.get_global_rank(group, self.place)} over the message of {what}: that process has died, or has been "
            f"silent for {self.patience.total_seconds():g} s ({error})"
        )


@dataclass
class _Pending:
    """A message on its way."""

    tick: int
    micro_batch: int
    streams: Streams | None = None
    gradients: Streams | None = None
    header: Tensor | None = None  # until the layout is known
    works: list[Any] = field(default_factory=list)


class _Inlet:
    """Messages in one direction from one neighbour, in order."""

    def __init__(self, peer: _Peer, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: Layouts | None = None
        self._pending: deque[_Pending] = deque()

    def post(self, tick: int, micro_batch: int) -> None:
        """Expect the next message, in this tick and of this micro-batch."""
        if self._layouts is None and self._pending:
            self._agree(self._pending[0])
        pending = _Pending(tick, micro_batch)
        self._pending.append(pending)
        if self._layouts is None:
            pending.header = self._post_header(pending)
        else:
            self._post_payload(pending, self._layouts)

    def take(self, before: int) -> list[Message]:
        """The messages of ticks before that; waits for them."""
        messages = []
        while self._pending and self._pending[0].tick < before:
            pending = self._pending[0]
            if pending.header is not None:
                self._agree(pending)
            self._wait(pending)
            self._pending.popleft()
            messages.append(Message(pending.micro_batch, pending.streams, pending.gradients))
        return messages

    def take_alone(self) -> Streams:
        """The streams of a message outside the schedule, whose layout comes with it."""
        pending = _Pending(ALONE, ALONE)
        header = self._post_header(pending)
        self._wait(pending)
        self._post_payload(pending, layouts_in(header))
        self._wait(pending)
        assert pending.streams is not None
        return pending.streams

    def _post_header(self, pending: _Pending) -> Tensor:
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=self._wire)
        self._receive(header, pending)
        return header

    def _post_payload(self, pending: _Pending, layouts: Layouts) -> None:
        pending.streams, pending.gradients = (
            None if side is None else tuple(layout.empty(self._wire) for layout in side) for side in layouts
        )
        for tensor in (*(pending.streams or ()), *(pending.gradients or ())):
            self._receive(flat(tensor), pending)

    def _receive(self, tensor: Tensor, pending: _Pending) -> None:
        try:
            pending.works.append(dist.irecv(tensor, group=self._group, group_src=self._peer.place))
        except RuntimeError as error:
            raise self._peer.lost(pending.micro_batch, self._group, error) from error

    def _agree(self, pending: _Pending) -> None:
        assert pending.header is not None
        self._wait(pending)
        self._layouts = layouts_in(pending.header)
        pending.header = None
        self._post_payload(pending, self._layouts)

    def _wait(self, pending: _Pending) -> None:
        try:
            for work in pending.works:
                work.wait()
        except RuntimeError as error:
            raise self._peer.lost(pending.micro_batch, self._group, error) from error
        pending.works.clear()


class _Outlet:
    """Messages in one direction to one neighbour, in order."""

    def __init__(self, peer: _Peer, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: Layouts | None = None
        self._sending: deque[tuple[int, Any, Tensor]] = deque()  # micro-batch, work, memory
        self._recent: deque[int] = deque(maxlen=MAY_TRAVEL)

    def send(self, message: Message) -> None:
        """Post a message whose layout is that of the first.

        Raises:
            ChannelError: it has another layout.

        """
        streams, gradients = dense(message.streams, self._wire), dense(message.gradients, self._wire)
        layouts: Layouts = (layout_of(streams), layout_of(gradients))
        if self._layouts is None:
            self._layouts = layouts
            self._post(header_of(streams, gradients).to(self._wire), message.micro_batch)
        elif layouts != self._layouts:
            raise ChannelError(
                f"the message of micro-batch {message.micro_batch} from stage {self._peer.own} to stage "
                f"{self._peer.stage} has the layout {layouts}, those before it had {self._layouts}; all micro-batches "
                f"of a run must be alike"
            )
        for tensor in (*(streams or ()), *(gradients or ())):
            self._post(flat(tensor), message.micro_batch)

    def send_alone(self, streams: Streams) -> None:
        """Post a message outside the schedule, its layout with it."""
        whole = dense(streams, self._wire)
        assert whole is not None
        self._post(header_of(whole, None).to(self._wire), ALONE)
        for stream in whole:
            self._post(flat(stream), ALONE)

    def wait(self) -> None:
        """Wait until all is gone."""
        while self._sending:
            self._let_go()

    def _let_go(self) -> None:
        micro_batch, work, _ = self._sending.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise self._peer.lost(micro_batch, self._group, error) from error

    def _post(self, tensor: Tensor, micro_batch: int) -> None:
        if micro_batch not in self._recent:
            self._recent.append(micro_batch)
        while self._sending and (self._sending[0][1].is_completed() or self._sending[0][0] not in self._recent):
            self._let_go()
        try:
            work = dist.isend(tensor, group=self._group, group_dst=self._peer.place)
        except RuntimeError as error:
            raise self._peer.lost(micro_batch, self._group, error) from error
        self._sending.append((micro_batch, work, tensor))
