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
    """A message between neighbouring stages, of one micro-batch.

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
        """Return the message on `device`; itself if it is there."""
        if all(tensor.device == device for tensor in self.tensors):
            return self
        return Message(self.micro_batch, _moved(self.streams, device), _moved(self.gradients, device))


def _moved(streams: Streams | None, device: torch.device) -> Streams | None:
    if streams is None:
        return None
    # A copy to the CPU must be synchronous, because the host could read the memory before the data has arrived.
    return tuple(stream.to(device, non_blocking=device.type != "cpu") for stream in streams)


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
    def check_settings(
        self, settings: Mapping[str, Any], stages: Sequence[Stage], optimizer: OptimizerFactory | None
    ) -> None:
        """Compare the arguments of the pipeline with those of all ranks, as it is made; all ranks call this.

        Args:
            settings: values by name that must be equal.
            stages: of the whole pipeline.
            optimizer: makes the optimizer of a stage.

        Raises:
            ValueError: two ranks differ; raised on all ranks.

        """

    @abc.abstractmethod
    def check_step(self, micro_batch: int, inputs: Streams, target: object, learning_rate: float | None) -> None:
        """Compare, at the first steps and at some later ones, what the ranks were given; all ranks call this.

        Args:
            micro_batch: number of the micro-batch that enters.
            inputs: of stage 0.
            target: of the loss.
            learning_rate: of stage 0 that was set last; None before it was set.

        Raises:
            ValueError: the ranks of stage 0 and of the head have different micro-batches, or two ranks different
                learning rates; raised on all ranks.

        """

    @abc.abstractmethod
    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks, on the CPU, in the order of the ranks; all ranks call this."""

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
    def settle(self) -> None:
        """Wait until all sent messages have arrived. All ranks call this when no micro-batch is in flight.

        Later messages may have another layout.
        """

    @abc.abstractmethod
    def evaluation_input(self, streams: Streams) -> Streams:
        """Return the input of this rank in an evaluation: `streams` on the lowest rank, else what it receives."""

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """Send `streams`, the output of this rank's stages in an evaluation, up.

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
