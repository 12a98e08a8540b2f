"""What carries messages between ranks, as the pipeline sees it.

A pipeline whose stages all live in one process hands messages over itself. Where other ranks own some of the stages, it
gives a channel what goes to them and asks it for what comes from them; nothing else differs. Both sides know from the
schedule which messages a tick brings, so nothing is announced and nobody is asked.

This module exports Channel.
"""

import abc

from petra_core.schedule import Tick
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Channel"]


class Channel(abc.ABC):
    """One rank's connection to the ranks that own the stages below and above its own.

    Attributes:
        stages: the stages that this rank owns, consecutive.
        count: J, the stages of all ranks.

    """

    stages: range
    count: int

    @abc.abstractmethod
    def begin(self, number: int, tick: Tick) -> None:
        """Tick `number` begins: get ready for what the neighbours will send in it."""

    @abc.abstractmethod
    def send(self, stage: int, message: Message) -> None:
        """Send a message to `stage`, just below or above this rank's own, without waiting for its arrival."""

    @abc.abstractmethod
    def collect(self, stage: int, before: int) -> list[Message]:
        """Messages to this rank's `stage` that were sent in ticks before `before`, oldest first; waits for them."""

    @abc.abstractmethod
    def evaluation_input(self, streams: Streams) -> Streams:
        """In an evaluation: what the rank below sends up; on the lowest rank `streams`."""

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """In an evaluation: send `streams` up to the next rank. Returns on every rank what the highest one has."""
