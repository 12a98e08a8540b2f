"""The channel that carries messages between ranks, as the pipeline sees it.

A pipeline whose stages all live in one process hands messages over itself. Where other ranks own some of the stages, it
gives a channel what goes to them and asks it for what comes from them; nothing else differs. Both sides know from the
schedule which messages a tick brings, so nothing is announced and nobody is asked.
"""

import abc
import contextlib

from torch import nn

from petra_core.schedule import Action, Tick
from petra_core.stages import Stage
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Channel"]


class Channel(abc.ABC):
    """One rank's connection to the ranks that own the stages below and above its own.

    Attributes:
        stages: the stages that this rank owns, consecutive.
        count: J, the stages of all ranks.
        replicas: of each stage, the ranks that take its micro-batches in turn; empty where no stage has several.
        replica: number of this rank among those that have the same stages.

    """

    stages: range
    count: int
    replicas: tuple[int, ...]
    replica: int

    @abc.abstractmethod
    def begin(self, tick: Tick) -> None:
        """Get ready for what the neighbours will send in a tick, which begins."""

    @abc.abstractmethod
    def end(self) -> None:
        """See to it that what is sent in a tick is on its way; all actions of it are done, or enqueued on a GPU."""

    @abc.abstractmethod
    def send(self, stage: int, message: Message) -> None:
        """Send a message to `stage`, just below or above this rank's own, without waiting for its arrival.

        Of the ranks that have that stage it goes to the one whose turn the micro-batch is.
        """

    @abc.abstractmethod
    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for the messages that `stage`, of this rank, needs from others for `action`, oldest first.

        None: for all messages that were sent in the ticks begun so far.
        """

    @abc.abstractmethod
    def average_gradients(self, index: int, version: int, stage: Stage) -> None:
        """Replace the gradients of a stage by their mean over its replicas; all of them call this, before an update."""

    @abc.abstractmethod
    def averaged_statistics(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Context in which running statistics are their mean over the replicas; all of them enter it."""

    @abc.abstractmethod
    def evaluation_input(self, streams: Streams) -> Streams:
        """The input of this rank's stages in an evaluation: what the rank below sends up, or `streams` on the lowest.

        Of replicas the first alone takes part.
        """

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """Send `streams`, the output of this rank's stages in an evaluation, up; of replicas the first alone does.

        Returns:
            The output of the highest rank, on every rank.

        """
