"""The channel that carries messages between ranks, as the pipeline sees it.

A pipeline whose stages all live in one process hands messages over itself. Where other ranks own some of the stages, it
gives a channel what goes to them and asks it for what comes from them; nothing else differs. Both sides know from the
staleness which messages a step brings, so nothing is announced and nobody is asked.
"""

import abc

from petra_core.schedule import Action
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Channel"]


class Channel(abc.ABC):
    """One rank's connection to the ranks that own the stages below and above its own.

    Attributes:
        stages: the stages that this rank owns, consecutive.
        count: J, the stages of all ranks.
        staleness: of the pipeline that uses the channel, which sets it.

    """

    stages: range
    count: int
    staleness: tuple[int, ...]

    @abc.abstractmethod
    def expect(self, forward: int | None, backward: int | None) -> None:
        """Prepare for what the neighbours send in a step: the messages of these micro-batches, from below and above."""

    @abc.abstractmethod
    def send(self, stage: int, message: Message) -> None:
        """Send a message to `stage`, just below or above this rank's own, without waiting for its arrival."""

    @abc.abstractmethod
    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for the messages that `stage`, of this rank, needs from others for `action`, oldest first.

        None: for all that are expected so far.
        """

    @abc.abstractmethod
    def evaluation_input(self, streams: Streams) -> Streams:
        """The input of this rank's stages in an evaluation: what the rank below sends; on the lowest `streams`."""

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """Send `streams`, the output of this rank's stages in an evaluation, up.

        Returns:
            The output of the highest rank, on every rank.

        """
