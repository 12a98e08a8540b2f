"""Messages to and from one neighbour over torch.distributed: an inlet and an outlet for each.

The layout of messages is agreed once, by a header ahead of the first (`petra_core.distributed.layout`); from then on
tensors alone travel. A header goes from CPU to CPU, over Gloo, and has arrived before anything that it tells of is
started, so that the wire itself never carries two things of which one waits for the other. Receives are posted ahead,
sends are kept until they have arrived.

Internal: `petra_core.distributed` sends and receives.
"""

from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.exchange import OUTSIDE, Exchange, Peer, Transfer
from petra_core.distributed.groups import CPU, ChannelError
from petra_core.distributed.layout import HEADER_BYTES, Layouts, dense, flat, header_of, layout_of, layouts_in
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Inlet", "Outlet"]


@dataclass
class _Pending:
    """A message on its way."""

    micro_batch: int
    streams: Streams | None = None
    gradients: Streams | None = None
    transfers: list[Transfer] | None = None  # None until its receive is posted

    def wait(self) -> None:
        assert self.transfers is not None
        for transfer in self.transfers:
            transfer.wait()
        self.transfers = []


class Outlet:
    """Messages in one direction to one neighbour, in order.

    Args:
        peer: the neighbour.
        exchange: starts what is sent.
        wire: the device on which messages are sent.
        may_travel: micro-batches whose messages may be on their way. Gloo says that one has arrived only to who waits
            for it, and what is not waited for is kept for ever.

    Attributes:
        layouts: of all messages; None before the first.

    """

    def __init__(self, peer: Peer, exchange: Exchange, wire: torch.device, may_travel: int) -> None:
        self._peer, self._exchange, self._wire = peer, exchange, wire
        self.layouts: Layouts | None = None
        self._sending: deque[Transfer] = deque()
        self._recent: deque[int] = deque(maxlen=may_travel)

    def send(self, message: Message) -> None:
        """Send a message whose layout is that of the first.

        Raises:
            ChannelError: it has another layout, or the neighbour is lost.

        """
        streams, gradients = dense(message.streams, self._wire), dense(message.gradients, self._wire)
        layouts: Layouts = (layout_of(streams), layout_of(gradients))
        self._make_room(message.micro_batch)
        if self.layouts is None:
            self.layouts = layouts
            self._tell(layouts, message.micro_batch)
        elif layouts != self.layouts:
            raise ChannelError(
                f"the message of micro-batch {message.micro_batch} from stage {self._peer.own_stage} to stage "
                f"{self._peer.stage} has the layout {layouts}, those before it had {self.layouts}; all micro-batches "
                f"of a run must be alike"
            )
        for tensor in (*(streams or ()), *(gradients or ())):
            self._sending.append(self._exchange.send(flat(tensor), self._peer, message.micro_batch))

    def send_outside_schedule(self, streams: Streams) -> None:
        """Send a message outside the schedule, its layout with it."""
        self._let_go_of_outside()
        whole = dense(streams, self._wire)
        assert whole is not None
        self._make_room(OUTSIDE)
        self._tell((layout_of(whole), None), OUTSIDE)
        for stream in whole:
            self._sending.append(self._exchange.send(flat(stream), self._peer, OUTSIDE))
        self._exchange.end()

    def settle(self) -> None:
        """Wait until all that has been started is gone."""
        while self._sending and self._sending[0].work is not None:
            self._sending.popleft().wait()

    def _tell(self, layouts: Layouts, micro_batch: int) -> None:
        header = header_of(layouts)
        self._sending.append(self._exchange.send(header, self._peer, micro_batch, at_once=True))

    def _let_go_of_outside(self) -> None:
        """Let go of the evaluation before: its receiver took it before all ended that evaluation together.

        All have one number, so that `_make_room` would keep those of a whole evaluation.
        """
        for transfer in self._sending:
            if transfer.micro_batch == OUTSIDE:
                transfer.wait()
        self._sending = deque(transfer for transfer in self._sending if transfer.micro_batch != OUTSIDE)

    def _make_room(self, micro_batch: int) -> None:
        """Let go of what has arrived, and wait for what is older than those that may be on their way."""
        if micro_batch not in self._recent:
            self._recent.append(micro_batch)
        while self._sending and (self._sending[0].arrived or self._sending[0].micro_batch not in self._recent):
            self._sending.popleft().wait()


class Inlet:
    """Messages in one direction from one neighbour, in order.

    Args:
        peer: the neighbour.
        exchange: starts what is received.
        wire: the device on which messages arrive.
        answers: where the messages went that these are the gradients of; None for what comes from below.

    """

    def __init__(self, peer: Peer, exchange: Exchange, wire: torch.device, answers: Outlet | None = None) -> None:
        self._peer, self._exchange, self._wire, self._answers = peer, exchange, wire, answers
        self._layouts: Layouts | None = None
        self._pending: deque[_Pending] = deque()

    def expect(self, micro_batch: int) -> None:
        """Expect, in the tick that begins, the message of this micro-batch, and post its receive if that can be now."""
        self._pending.append(_Pending(micro_batch))
        if self._layouts is not None and not self._exchange.batched:  # which would only hold the memory for a tick
            self.post()

    def post(self) -> None:
        """Post, when a tick has been computed, the receive of what is expected in it, unless that is done.

        Raises:
            ChannelError: the neighbour is lost, or its messages do not fit.

        """
        if self._pending and self._pending[-1].transfers is None:
            pending = self._pending[-1]
            if self._layouts is None:
                self._layouts = self._agreed(self._header(pending.micro_batch))
            self._post(pending, self._layouts)

    def take(self, last: int | None) -> list[Message]:
        """The messages of all micro-batches up to the last, None: all that are expected; waits for them."""
        messages = []
        while self._pending and (last is None or self._pending[0].micro_batch <= last):
            self._pending[0].wait()
            pending = self._pending.popleft()
            messages.append(Message(pending.micro_batch, pending.streams, pending.gradients))
        return messages

    def take_outside_schedule(self) -> Streams:
        """The streams of a message outside the schedule, whose layout comes with it."""
        pending = _Pending(OUTSIDE)
        self._post(pending, self._header(OUTSIDE))
        self._exchange.end()
        pending.wait()
        assert pending.streams is not None
        return pending.streams

    def settle(self) -> None:
        """Wait until all whose receives are started has arrived, without taking it."""
        for pending in self._pending:
            if pending.transfers is not None:
                pending.wait()

    def _header(self, micro_batch: int) -> Layouts:
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=CPU)
        self._exchange.receive(header, self._peer, micro_batch, at_once=True).wait()
        return layouts_in(header)

    def _agreed(self, layouts: Layouts) -> Layouts:
        """The layouts that the neighbour announces, if they are those of what they answer, but for strides."""
        sent = None if self._answers is None or self._answers.layouts is None else self._answers.layouts[0]
        for side in layouts if sent is not None else ():
            if side is not None and [(t.dtype, t.shape) for t in side] != [(t.dtype, t.shape) for t in sent or ()]:
                raise ChannelError(
                    f"stage {self._peer.own_stage} on rank {dist.get_rank()} sends stage {self._peer.stage} on rank "
                    f"{dist.get_global_rank(self._exchange.group, self._peer.place)} the layout {sent}, and what comes "
                    f"back has the layout {side}: the processes do not train the same network"
                )
        return layouts

    def _post(self, pending: _Pending, layouts: Layouts) -> None:
        pending.streams, pending.gradients = (
            None if side is None else tuple(layout.empty(self._wire) for layout in side) for side in layouts
        )
        tensors: tuple[Tensor, ...] = (*(pending.streams or ()), *(pending.gradients or ()))
        pending.transfers = [
            self._exchange.receive(flat(tensor), self._peer, pending.micro_batch) for tensor in tensors
        ]
