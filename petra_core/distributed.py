"""A pipeline over several processes, by torch.distributed (Gloo or NCCL).

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
Upward and downward messages have a process group each: on NCCL that is a communicator and a stream each, so that
neither direction waits for the other.

Results depend on the order of each stage's own actions and on the contents of the messages alone, never on timing:
they are, bit for bit, those of one process. What is sent has the strides that it has in one process too, because other
strides may mean other kernels, which round differently.

This module exports ChannelError, ProcessChannel, even_partition.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.channel import Channel
from petra_core.errors import PetraError
from petra_core.schedule import Kind, Tick
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["ChannelError", "ProcessChannel", "even_partition"]

HEADER_BYTES = 1024  # of the first message in each direction: the layout of it and of all that follow
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)}


class ChannelError(PetraError, RuntimeError):
    """A message did not come, or does not fit."""


def even_partition(stages: int, ranks: int) -> tuple[int, ...]:
    """The number of stages of each rank, as equal as can be; where they do not divide, lower ranks have one more.

    Raises:
        ValueError: there are fewer stages than ranks.

    """
    if not 1 <= ranks <= stages:
        raise ValueError(
            f"{ranks} ranks need at least as many stages, got {stages}; use at most {stages} processes, or a network "
            f"of more stages"
        )
    share, rest = divmod(stages, ranks)
    return tuple(share + (rank < rest) for rank in range(ranks))


class ProcessChannel(Channel):
    """The channel of this process, one of the ranks of torch.distributed's default group.

    Every rank makes one, in the same order among other collective calls.

    Args:
        partition: the number of stages of each rank, such as (4, 3, 3).
        device: where received tensors are to be; with NCCL a CUDA device.

    Raises:
        ValueError: the partition does not fit the number of ranks, or gives a rank no stage.
        RuntimeError: torch.distributed is not initialised.

    """

    def __init__(self, partition: Sequence[int], device: torch.device | None = None) -> None:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group before")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if len(partition) != self.ranks or min(partition) < 1:
            raise ValueError(
                f"a partition gives each of the {self.ranks} ranks at least one stage, got {tuple(partition)}"
            )
        first = sum(partition[: self.rank])
        self.stages = range(first, first + partition[self.rank])
        self.count = sum(partition)
        wire = device if dist.get_backend() == "nccl" and device is not None else torch.device("cpu")
        up, down = dist.new_group(), dist.new_group()
        below, above = self.rank - 1, self.rank + 1
        self._from_below, self._to_below = _Inlet(below, up, wire), _Outlet(below, down, wire)
        self._from_above, self._to_above = _Inlet(above, down, wire), _Outlet(above, up, wire)
        self._wire = wire

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
        return self._from_below.take_alone() if self.rank > 0 else streams

    def evaluation_output(self, streams: Streams) -> Streams:
        """Send up, and take part in the highest rank's broadcast."""
        last = self.ranks - 1
        if self.rank < last:
            self._to_above.send_alone(streams)
        header = _header(streams, None) if self.rank == last else torch.empty(HEADER_BYTES, dtype=torch.uint8)
        header = header.to(self._wire)
        dist.broadcast(header, src=last)
        if self.rank < last:
            streams = tuple(layout.empty(self._wire) for layout in _layouts(header)[0] or ())
        for stream in streams:
            dist.broadcast(_flat(stream.to(self._wire)), src=last)
        return streams


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies in memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "_Layout":
        return cls(str(tensor.dtype), tuple(tensor.shape), tensor.stride())

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=DTYPES[self.dtype], device=device)


_Layouts = tuple[tuple[_Layout, ...] | None, tuple[_Layout, ...] | None]  # of streams and gradients


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

    def __init__(self, peer: int, group: Any, wire: torch.device) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: _Layouts | None = None
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
        pending = _Pending(-1, -1)
        header = self._post_header(pending)
        self._wait(pending)
        self._post_payload(pending, _layouts(header))
        self._wait(pending)
        assert pending.streams is not None
        return pending.streams

    def _post_header(self, pending: _Pending) -> Tensor:
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=self._wire)
        pending.works.append(dist.irecv(header, self._peer, group=self._group))
        return header

    def _post_payload(self, pending: _Pending, layouts: _Layouts) -> None:
        pending.streams, pending.gradients = (
            None if side is None else tuple(layout.empty(self._wire) for layout in side) for side in layouts
        )
        for tensor in (*(pending.streams or ()), *(pending.gradients or ())):
            pending.works.append(dist.irecv(_flat(tensor), self._peer, group=self._group))

    def _agree(self, pending: _Pending) -> None:
        assert pending.header is not None
        self._wait(pending)
        self._layouts = _layouts(pending.header)
        pending.header = None
        self._post_payload(pending, self._layouts)

    def _wait(self, pending: _Pending) -> None:
        try:
            for work in pending.works:
                work.wait()
        except RuntimeError as error:
            raise ChannelError(
                f"rank {dist.get_rank()} did not get the message of micro-batch {pending.micro_batch} from rank "
                f"{self._peer}, which has died or hangs: {error}"
            ) from error
        pending.works.clear()


class _Outlet:
    """Messages in one direction to one neighbour, in order."""

    def __init__(self, peer: int, group: Any, wire: torch.device) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: _Layouts | None = None
        self._sending: deque[tuple[Any, Tensor]] = deque()

    def send(self, message: Message) -> None:
        """Post a message whose layout is that of the first.

        Raises:
            ChannelError: it has another layout.

        """
        streams, gradients = _dense(message.streams, self._wire), _dense(message.gradients, self._wire)
        layouts: _Layouts = (_layout(streams), _layout(gradients))
        if self._layouts is None:
            self._layouts = layouts
            self._post(_header(streams, gradients).to(self._wire))
        elif layouts != self._layouts:
            raise ChannelError(
                f"the message of micro-batch {message.micro_batch} to rank {self._peer} has the layout {layouts}, "
                f"those before it had {self._layouts}; all micro-batches of a run must be alike"
            )
        for tensor in (*(streams or ()), *(gradients or ())):
            self._post(_flat(tensor))

    def send_alone(self, streams: Streams) -> None:
        """Post a message outside the schedule, its layout with it."""
        dense = _dense(streams, self._wire)
        assert dense is not None
        self._post(_header(dense, None).to(self._wire))
        for stream in dense:
            self._post(_flat(stream))

    def wait(self) -> None:
        """Wait until all is gone."""
        while self._sending:
            self._sending.popleft()[0].wait()

    def _post(self, tensor: Tensor) -> None:
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        self._sending.append((dist.isend(tensor, self._peer, group=self._group), tensor))


def _dense(tensors: Streams | None, device: torch.device) -> Streams | None:
    """The tensors on `device`, each in memory of its own without gaps, with the strides that it has if it can."""
    if tensors is None:
        return None
    return tuple(
        tensor if torch.empty_like(tensor, device="meta").stride() == tensor.stride() else tensor.contiguous()
        for tensor in (tensor.detach().to(device) for tensor in tensors)
    )


def _flat(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor, in one dimension."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _layout(tensors: Streams | None) -> tuple[_Layout, ...] | None:
    return None if tensors is None else tuple(map(_Layout.of, tensors))


def _header(streams: Streams | None, gradients: Streams | None) -> Tensor:
    """The layouts as a tensor of fixed size."""
    sides = [
        None if s is None else [[t.dtype, t.shape, t.strides] for t in s] for s in map(_layout, (streams, gradients))
    ]
    text = json.dumps(sides).encode()
    if len(text) > HEADER_BYTES:
        raise ChannelError(f"the layout of a message takes {len(text)} bytes, and {HEADER_BYTES} are provided for it")
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def _layouts(header: Tensor) -> _Layouts:
    streams, gradients = (
        None if side is None else tuple(_Layout(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in side)
        for side in json.loads(bytes(header.tolist()))
    )
    return streams, gradients
