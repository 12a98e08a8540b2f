"""Messages to and from one neighbour over torch.distributed: an inlet and an outlet for each.

The layout of messages is agreed once, by a header before the first (`petra_core.distributed.layout`); from then on
tensors alone travel. Receives are posted ahead, sends are kept until they have arrived.
"""

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.groups import ChannelError
from petra_core.distributed.layout import HEADER_BYTES, Layouts, dense, flat, header_of, layout_of, layouts_in
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Inlet", "Outlet", "Peer"]

OUTSIDE = -1  # in place of the number of a micro-batch: of an evaluation, or of the greeting


@dataclass(frozen=True)
class Peer:
    """A neighbour: another rank that owns the stage below or above ours.

    Attributes:
        place: its rank in the pipeline.
        stage: its stage at the border.
        own_stage: our stage there.
        patience: how long it is waited for.

    """

    place: int
    stage: int
    own_stage: int
    patience: timedelta

    def lost(self, micro_batch: int, group: dist.ProcessGroup, error: RuntimeError) -> ChannelError:
        """The error that says who lost whom, and over what."""
        what = f"micro-batch {micro_batch}" if micro_batch != OUTSIDE else "an evaluation, or the first contact"
        return ChannelError(
            f"stage {self.own_stage} on rank {dist.get_rank()} lost stage {self.stage} on rank "
            f"{dist.get_global_rank(group, self.place)} over the message of {what}: that process has died, or has been "
            f"silent for {self.patience.total_seconds():g} s ({error})"
        )


@dataclass
class _Pending:
    """A message on its way."""

    micro_batch: int
    streams: Streams | None = None
    gradients: Streams | None = None
    header: Tensor | None = None  # until the layout is known
    works: list[Any] = field(default_factory=list)


class Inlet:
    """Messages in one direction from one neighbour, in order."""

    def __init__(self, peer: Peer, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: Layouts | None = None
        self._pending: deque[_Pending] = deque()

    def post(self, micro_batch: int) -> None:
        """Expect the next message, which is that of this micro-batch."""
        self._agree_on_first()
        pending = _Pending(micro_batch)
        self._pending.append(pending)
        if self._layouts is None:
            pending.header = self._post_header(pending)
        else:
            self._post_payload(pending, self._layouts)

    def take(self, last: int | None) -> list[Message]:
        """The messages of all micro-batches up to the last, None: all that are expected; waits for them."""
        messages = []
        while self._pending and (last is None or self._pending[0].micro_batch <= last):
            pending = self._pending[0]
            if pending.header is not None:
                self._agree(pending)
            self._wait(pending)
            self._pending.popleft()
            messages.append(Message(pending.micro_batch, pending.streams, pending.gradients))
        return messages

    def take_outside_schedule(self) -> Streams:
        """The streams of a message outside the schedule, whose layout comes with it."""
        self._agree_on_first()
        pending = _Pending(OUTSIDE)
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

    def _agree_on_first(self) -> None:
        """Receive all of the first message, its header and its tensors, before anything that comes after it."""
        if self._layouts is None and self._pending:
            self._agree(self._pending[0])

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


class Outlet:
    """Messages in one direction to one neighbour, in order.

    Args:
        peer: the neighbour.
        group: of torch.distributed, for this direction.
        wire: the device on which messages are sent.
        may_travel: micro-batches whose messages may be on their way. Gloo says that one has arrived only to who waits
            for it, and what is not waited for is kept for ever.

    """

    def __init__(self, peer: Peer, group: dist.ProcessGroup, wire: torch.device, may_travel: int) -> None:
        self._peer, self._group, self._wire = peer, group, wire
        self._layouts: Layouts | None = None
        self._sending: deque[tuple[int, Any, Tensor]] = deque()  # micro-batch, work, memory
        self._recent: deque[int] = deque(maxlen=may_travel)

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
                f"the message of micro-batch {message.micro_batch} from stage {self._peer.own_stage} to stage "
                f"{self._peer.stage} has the layout {layouts}, those before it had {self._layouts}; all micro-batches "
                f"of a run must be alike"
            )
        for tensor in (*(streams or ()), *(gradients or ())):
            self._post(flat(tensor), message.micro_batch)

    def send_outside_schedule(self, streams: Streams) -> None:
        """Post a message outside the schedule, its layout with it."""
        self._let_go_of_outside()
        whole = dense(streams, self._wire)
        assert whole is not None
        self._post(header_of(whole, None).to(self._wire), OUTSIDE)
        for stream in whole:
            self._post(flat(stream), OUTSIDE)

    def wait(self) -> None:
        """Wait until all is gone."""
        while self._sending:
            self._let_go()

    def _let_go_of_outside(self) -> None:
        """Let go of the evaluation before: its receiver took it before all ended that evaluation together.

        All have one number, so that `_post` would keep those of a whole evaluation.
        """
        for micro_batch, work, _ in self._sending:
            if micro_batch == OUTSIDE:
                self._wait(micro_batch, work)
        self._sending = deque(entry for entry in self._sending if entry[0] != OUTSIDE)

    def _let_go(self) -> None:
        micro_batch, work, _ = self._sending.popleft()
        self._wait(micro_batch, work)

    def _wait(self, micro_batch: int, work: Any) -> None:
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
