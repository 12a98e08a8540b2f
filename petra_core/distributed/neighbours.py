"""Send messages to and receive messages from one neighbour over torch.distributed.

A header before the first message contains its layout (`petra_core.distributed.layout`); later messages are only
tensors, until `close`. Headers are sent from CPU to CPU over Gloo.

No rank waits for a send. A sent tensor is held until a message arrives that the neighbour computed after receiving it,
which proves that the send has completed. Over Gloo receives are posted early, so that a message can arrive while its
receiver computes: the receives of a step at its beginning, and one forward receive for the next step. `Receiver.close`
and `Sender.close` complete the last of these.

An evaluation sends one message and closes, so each of its messages has a header. It has a separate sender and receiver,
whose tag keeps receives posted for training from matching its messages.

Internal to `petra_core.distributed`.
"""

from collections import deque
from typing import NamedTuple

import torch

from petra_core.distributed.groups import CPU, ChannelError
from petra_core.distributed.layout import HEADER_BYTES, Layouts, dense, flat, header_of, layout_of, layouts_in
from petra_core.distributed.transfers import NO_MICRO_BATCH, Neighbour, Transfer
from petra_core.messages import Message


class Sender:
    """Sender of messages to one neighbour, in order.

    Args:
        neighbour: Neighbour.

    Attributes:
        neighbour: Neighbour.
        layouts: Layouts of all messages, or None before the first message and before the first one after `close`.

    """

    def __init__(self, neighbour: Neighbour) -> None:
        self.neighbour = neighbour
        self.layouts: Layouts | None = None
        self._sending: deque[Transfer] = deque()

    def send(self, message: Message) -> None:
        """Send a message. Its layout must be that of the first message.

        Raises:
            ChannelError: If the layout differs, or the neighbour has died.

        """
        message = message.with_tensors(dense(message.tensors, self.neighbour.comm_device))
        gradients = None if message.gradients is None else layout_of(message.gradients)
        layouts: Layouts = (layout_of(message.streams), gradients)
        sent = [*map(flat, message.tensors)]
        if self.layouts is None:
            self.layouts = layouts
            sent.insert(0, header_of(layouts))
        elif layouts != self.layouts:
            raise ChannelError(
                f"the message of micro-batch {message.micro_batch} from stage {self.neighbour.own_stage} to stage "
                f"{self.neighbour.stage} has the layout {layouts}, earlier messages had {self.layouts}; drain the "
                f"pipeline before micro-batches of other shapes or dtypes"
            )
        self._sending.append(self.neighbour.send(sent, message.micro_batch))

    def release(self, last: int) -> None:
        """Release the messages of all micro-batches up to `last`, which are known to have arrived."""
        while self._sending and self._sending[0].micro_batch <= last:
            self._sending.popleft().wait()

    def close(self) -> None:
        """Wait until all messages have arrived. The next message may have another layout.

        A dummy message completes the receive that the neighbour may have posted for the next step.
        """
        if self.neighbour.ahead and self.layouts is not None:
            layouts = [layout for side in self.layouts for layout in side or ()]
            dummies = [flat(layout.empty(self.neighbour.comm_device)) for layout in layouts]
            self._sending.append(self.neighbour.send(dummies, NO_MICRO_BATCH))
        while self._sending:
            self._sending.popleft().wait()
        self.layouts = None


class Receiver:
    """Receiver of messages from one neighbour, in order.

    Args:
        neighbour: Neighbour.
        answers: For gradients, the sender of the corresponding streams. None for streams from below.

    Attributes:
        neighbour: Neighbour.

    """

    def __init__(self, neighbour: Neighbour, answers: Sender | None = None) -> None:
        self.neighbour, self._answers = neighbour, answers
        self._layouts: Layouts | None = None
        self._expected: deque[int] = deque()  # micro-batches whose messages have not been taken
        # Posted receives, in the order of the expected messages. The last may be that of the next step.
        self._posted: deque[tuple[Message, Transfer]] = deque()

    def expect(self, micro_batch: int) -> None:
        """Expect the message of a micro-batch in this step, and post its receive if receives are posted early."""
        self._expected.append(micro_batch)
        if self._layouts is not None:
            self._post_early(self._layouts)

    def take(self, last: int | None) -> list[Message]:
        """Wait for expected messages and return them.

        Args:
            last: Last micro-batch whose message is returned. None returns all expected messages.

        Raises:
            ChannelError: If the neighbour has died or timed out, or its messages have an unexpected layout.

        """
        messages = []
        while self._expected and (last is None or self._expected[0] <= last):
            if self._layouts is None:
                self._layouts = self._receive_layouts(self._expected[0])
            if not self._posted:
                self._post(self._expected[0], self._layouts)
            self._post_early(self._layouts)
            message, transfer = self._posted[0]
            transfer.micro_batch = self._expected[0]  # for errors; it was unknown when the receive was posted ahead
            transfer.wait()
            self._posted.popleft()
            messages.append(Message(self._expected.popleft(), message.streams, message.gradients))
        return messages

    def close(self) -> None:
        """Receive all expected messages, and the dummy message for the receive that was posted for the next step.

        The next message comes with a header.
        """
        self.take(None)
        while self._posted:
            self._posted.popleft()[1].wait()
        self._layouts = None

    def _receive_layouts(self, micro_batch: int) -> Layouts:
        """Receive the header that announces the layouts of all messages, and return them.

        Raises:
            ChannelError: If gradients have other dtypes and shapes than their streams.

        """
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device=CPU)
        self.neighbour.receive([header], micro_batch).wait()
        layouts = layouts_in(header)
        if self._answers is None or self._answers.layouts is None:
            return layouts
        sent = self._answers.layouts[0]
        for side in layouts:
            if side and [(t.dtype, t.shape) for t in side] != [(t.dtype, t.shape) for t in sent]:
                raise ChannelError(
                    f"{self.neighbour.describe_own()} sends {self.neighbour} streams of the layout {sent}, but "
                    f"receives gradients of the layout {side}; build the same network in all processes"
                )
        return layouts

    def _post(self, micro_batch: int, layouts: Layouts) -> None:
        device = self.neighbour.comm_device
        streams = tuple(layout.empty(device) for layout in layouts[0])
        gradients = None if layouts[1] is None else tuple(layout.empty(device) for layout in layouts[1])
        message = Message(micro_batch, streams, gradients)
        self._posted.append((message, self.neighbour.receive([*map(flat, message.tensors)], micro_batch)))

    def _post_early(self, layouts: Layouts) -> None:
        """Post the receives of all expected messages and, if the neighbour is ahead, that of the next step."""
        if self.neighbour.comm_device.type == "cpu":  # over Gloo
            wanted = [*self._expected, *[NO_MICRO_BATCH] * self.neighbour.ahead]
            for micro_batch in wanted[len(self._posted) :]:
                self._post(micro_batch, layouts)


class Border(NamedTuple):
    """Connection to the rank that has the stage just below or above the stages of this rank.

    Attributes:
        sender: Sender of messages to this rank.
        receiver: Receiver of its messages.

    """

    sender: Sender
    receiver: Receiver
