"""Messages to and from one neighbour over torch.distributed: an inlet and an outlet for each.

The layout of messages is agreed once, by a header ahead of the first (`petra_core.distributed.layout`); from then on
tensors alone travel. A header goes from CPU to CPU, over Gloo.

Nobody waits for a send. What was sent is held until something has come back that the neighbour made after it had
received it: then the send is over. Over Gloo receives are posted ahead, so that a message can arrive while its receiver
computes: those of a step at its beginning, and for forwards one more, that of the step to come. `Inlet.close` and
`Outlet.close` fill the last of these.

Internal: `petra_core.distributed` sends and receives.
"""

from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.exchange import OUTSIDE, Peer, Transfer
from petra_core.distributed.groups import CPU, ChannelError
from petra_core.distributed.layout import HEADER_BYTES, Layouts, dense, flat, header_of, layout_of, layouts_in
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Inlet", "Outlet"]

ASIDE = 1  # tag of evaluations, which a receive that was posted for training must not take


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
        wire: the device on which messages are sent.

    Attributes:
        layouts: of all messages; None before the first.

    """

    def __init__(self, peer: Peer, wire: torch.device) -> None:
        self._peer, self._wire = peer, wire
        self.layouts: Layouts | None = None
        self._sending: deque[Transfer] = deque()

    def send(self, message: Message) -> None:
        """Send a message whose layout is that of the first.

        Raises:
            ChannelError: it has another layout, or the neighbour is lost.

        """
        streams, gradients = dense(message.streams, self._wire), dense(message.gradients, self._wire)
        layouts: Layouts = (layout_of(streams), layout_of(gradients))
        if self.layouts is None:
            self.layouts = layouts
            self._sending.append(self._peer.send(header_of(layouts), message.micro_batch))
        elif layouts != self.layouts:
            raise ChannelError(
                f"the message of micro-batch {message.micro_batch} from stage {self._peer.own_stage} to stage "
                f"{self._peer.stage} has the layout {layouts}, those before it had {self.layouts}; all micro-batches "
                f"of a run must be alike"
            )
        for tensor in (*(streams or ()), *(gradients or ())):
            self._sending.append(self._peer.send(flat(tensor), message.micro_batch))

    def let_go(self, last: int) -> None:
        """Let go of the messages of all micro-batches up to `last`, which are known to have arrived."""
        while self._sending and self._sending[0].micro_batch <= last:
            self._sending.popleft().wait()

    def send_aside(self, streams: Streams) -> None:
        """Send a message of an evaluation, its layout with it, and wait until it has arrived."""
        whole = dense(streams, self._wire)
        assert whole is not None
        sent = [self._peer.send(header_of((layout_of(whole), None)), OUTSIDE, ASIDE)]
        sent += [self._peer.send(flat(stream), OUTSIDE, ASIDE) for stream in whole]
        for transfer in sent:
            transfer.wait()

    def close(self, *, ahead: bool) -> None:
        """Wait until all has arrived; fill the receive that the neighbour has posted ahead, if it does so."""
        if ahead and self.layouts is not None:
            for layout in (layout for side in self.layouts for layout in side or ()):
                self._sending.append(self._peer.send(flat(layout.empty(self._wire)), OUTSIDE))
        while self._sending:
            self._sending.popleft().wait()


class Inlet:
    """Messages in one direction from one neighbour, in order.

    Args:
        peer: the neighbour.
        wire: the device on which messages arrive.
        answers: where the messages went that these are the gradients of; None for what comes from below.

    """

    def __init__(self, peer: Peer, wire: torch.device, answers: Outlet | None = None) -> None:
        self._peer, self._wire, self._answers = peer, wire, answers
        self._posts_early = wire.type == "cpu"
        self._layouts: Layouts | None = None
        self._pending: deque[_Pending] = deque()
        self._ahead: _Pending | None = None  # posted for the message of a step to come

    def expect(self, micro_batch: int) -> None:
        """Expect the message of this micro-batch in the step that begins, and post its receive if that can be now."""
        pending, self._ahead = self._ahead or _Pending(micro_batch), None
        pending.micro_batch = micro_batch
        self._pending.append(pending)
        if self._posts_early and self._layouts is not None:
            self._post(pending, self._layouts)
            self._post_ahead(self._layouts)

    def take(self, last: int | None) -> list[Message]:
        """The messages of all micro-batches up to the last, None: all that are expected; waits for them.

        Raises:
            ChannelError: the neighbour is lost, or its messages do not fit.

        """
        messages = []
        while self._pending and (last is None or self._pending[0].micro_batch <= last):
            pending = self._pending[0]
            if self._layouts is None:
                self._layouts = self._agreed(self._header(pending.micro_batch))
            self._post(pending, self._layouts)
            if self._posts_early:
                for later in self._pending:
                    self._post(later, self._layouts)
                self._post_ahead(self._layouts)
            pending.wait()
            self._pending.popleft()
            messages.append(Message(pending.micro_batch, pending.streams, pending.gradients))
        return messages

    def take_aside(self) -> Streams:
        """The streams of a message of an evaluation, whose layout comes with it."""
        layouts = self._header(OUTSIDE, ASIDE)
        streams = tuple(layout.empty(self._wire) for layout in layouts[0] or ())
        for transfer in [self._peer.receive(flat(stream), OUTSIDE, ASIDE) for stream in streams]:
            transfer.wait()
        return streams

    def close(self) -> None:
        """Take all that is expected, and what fills the receive that was posted ahead."""
        self.take(None)
        if self._ahead is not None:
            self._ahead.wait()

    def _header(self, micro_batch: int, tag: int = 0) -> Layouts:
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=CPU)
        self._peer.receive(header, micro_batch, tag).wait()
        return layouts_in(header)

    def _agreed(self, layouts: Layouts) -> Layouts:
        """The layouts that the neighbour announces, if they are those of what they answer, but for strides."""
        sent = None if self._answers is None or self._answers.layouts is None else self._answers.layouts[0]
        for side in layouts if sent is not None else ():
            if side is not None and [(t.dtype, t.shape) for t in side] != [(t.dtype, t.shape) for t in sent or ()]:
                raise ChannelError(
                    f"stage {self._peer.own_stage} on rank {dist.get_rank()} sends stage {self._peer.stage} on rank "
                    f"{dist.get_global_rank(self._peer.group, self._peer.place)} the layout {sent}, and what comes "
                    f"back has the layout {side}: the processes do not train the same network"
                )
        return layouts

    def _post(self, pending: _Pending, layouts: Layouts) -> None:
        if pending.transfers is not None:
            return
        pending.streams, pending.gradients = (
            None if side is None else tuple(layout.empty(self._wire) for layout in side) for side in layouts
        )
        tensors: tuple[Tensor, ...] = (*(pending.streams or ()), *(pending.gradients or ()))
        pending.transfers = [self._peer.receive(flat(tensor), pending.micro_batch) for tensor in tensors]

    def _post_ahead(self, layouts: Layouts) -> None:
        """Post the receive of a step to come, of forwards: gradients come a step or more before they are used."""
        if self._answers is None and self._ahead is None:
            self._ahead = _Pending(OUTSIDE)
            self._post(self._ahead, layouts)
