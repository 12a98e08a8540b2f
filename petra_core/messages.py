"""Messages between neighbouring stages, and the channel that carries them between ranks.

A pipeline whose stages are all in one process delivers messages itself. If other ranks own some of the stages, it sends
and receives through a channel; nothing else differs. Both ends derive the expected messages of a step from the
staleness, so no handshake is needed.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from petra_core.ledger import payload
from petra_core.optimizers import OptimizerFactory
from petra_core.stages import Stage
from petra_core.staleness import Action
from petra_core.tape import Streams

__all__ = ["Channel", "Message", "check_channel"]


@dataclass(frozen=True)
class Message:
    """A message of one micro-batch between neighbouring stages.

    Upwards, `streams` is the output of the lower stage and `gradients` is None. Downwards, `gradients` is the gradient
    with respect to the output of the lower stage. `streams` is that output as the upper stage has it (kept or
    reconstructed), or None if the lower stage does not reconstruct.

    A method that overlaps (PAREPROP) sends two messages down: first the streams with the empty tuple as `gradients`, so
    that the stage below can begin its reconstruction, then the gradients without streams. `Worker.receive` joins them.
    """

    micro_batch: int
    streams: Streams | None
    gradients: Streams | None = None

    @property
    def tensors(self) -> Streams:
        """All tensors of the message."""
        return (*(self.streams or ()), *(self.gradients or ()))

    def with_tensors(self, tensors: Streams) -> "Message":
        """Return the message with other tensors, in the order of `tensors`."""
        count = len(self.streams or ())
        streams = None if self.streams is None else tensors[:count]
        return Message(self.micro_batch, streams, None if self.gradients is None else tensors[count:])

    def bytes(self) -> int:
        """Return the payload of the message in bytes."""
        return payload(self.tensors)

    def to(self, device: torch.device) -> "Message":
        """Return the message on `device`; the message itself if it is already there."""
        if all(tensor.device == device for tensor in self.tensors):
            return self
        return Message(self.micro_batch, _moved(self.streams, device), _moved(self.gradients, device))


def _moved(streams: Streams | None, device: torch.device) -> Streams | None:
    if streams is None:
        return None
    # A copy to the CPU must be synchronous, because the host could read the memory before the data has arrived.
    return tuple(stream.to(device, non_blocking=device.type != "cpu") for stream in streams)


class Channel(abc.ABC):
    """The connection of one rank to the ranks that own the neighbouring stages.

    Attributes:
        stages: Consecutive stages that this rank owns.
        count: Number of stages J of all ranks.
        staleness: Staleness of each stage. The pipeline that uses the channel sets it.

    """

    stages: range
    count: int
    staleness: tuple[int, ...]

    @abc.abstractmethod
    def check_settings(
        self, settings: Mapping[str, Any], stages: Sequence[Stage], optimizer: OptimizerFactory | None
    ) -> None:
        """Compare the arguments of a new pipeline with those of all ranks. All ranks must call this.

        Args:
            settings: Values by name, which must be equal on all ranks.
            stages: Stages of the whole pipeline.
            optimizer: Factory of the optimizers.

        Raises:
            ValueError: If two ranks differ. All ranks raise it.

        """

    @abc.abstractmethod
    def check_step(self, micro_batch: int, inputs: Streams, target: object, learning_rate: float | None) -> None:
        """Compare the arguments of a step with those of all ranks, in the first steps and some later ones.

        All ranks must call this.

        Args:
            micro_batch: Number of the micro-batch that enters.
            inputs: Input of stage 0.
            target: Target of the loss.
            learning_rate: Last learning rate that was set for stage 0; None if none was set.

        Raises:
            ValueError: If the ranks of stage 0 and of the head have different micro-batches, or two ranks have
                different learning rates. All ranks raise it.

        """

    @abc.abstractmethod
    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks on the CPU, in the order of the ranks. All ranks must call this."""

    @abc.abstractmethod
    def expect(self, forward: int | None, backward: int | None) -> None:
        """Prepare for the messages that the neighbours send in a step.

        Args:
            forward: Number of the micro-batch whose message comes from below; None for no message.
            backward: Number of the micro-batch whose message comes from above; None for no message.

        """

    @abc.abstractmethod
    def send(self, stage: int, message: Message) -> None:
        """Send a message to `stage`, just below or above the stages of this rank, without waiting for its arrival."""

    @abc.abstractmethod
    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for the messages that an action needs from other ranks, and return them.

        Args:
            stage: Stage of this rank.
            action: The action; None for all messages that are expected so far.

        Returns:
            The messages, oldest first.

        """

    @abc.abstractmethod
    def wait_all(self) -> None:
        """Wait until all sent messages have arrived. Later messages may have other shapes.

        All ranks must call this when no micro-batch is in flight.
        """

    @abc.abstractmethod
    def evaluation_input(self, streams: Streams) -> Streams:
        """Return the input of this rank in an evaluation: `streams` on the lowest rank, or else received streams."""

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """Pass on the output of this rank's stages in an evaluation.

        Args:
            streams: The output.

        Returns:
            The output of the highest rank, on every rank.

        """


def check_channel(channel: Channel | None, stages: int, seed: int | None) -> None:
    """Raise ValueError unless a pipeline's channel fits its other arguments."""
    if channel is None:
        return
    if seed is None:
        raise ValueError(
            "over several processes random numbers must not depend on where a stage runs: give the pipeline a seed"
        )
    if channel.count != stages:
        raise ValueError(f"the channel is for {channel.count} stages, the network has {stages}")
