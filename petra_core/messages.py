"""Messages between neighbouring stages, and the channel that carries them between ranks.

A pipeline whose stages are all in one process delivers messages itself. If other ranks own some of the stages, it sends
and receives through a channel; nothing else differs. Both ends derive the expected messages of a step from the
staleness, so no handshake is needed.
"""

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


@dataclass(frozen=True)
class Message:
    """A message of one micro-batch between neighbouring stages.

    Upwards, `streams` is the output of the lower stage and `gradients` is None. Downwards, `gradients` is the gradient
    with respect to the output of the lower stage. `streams` is that output as the upper stage has it (kept or
    reconstructed), or empty if the lower stage does not reconstruct.

    A method that overlaps (PAREPROP) sends two messages down: first the streams with the empty tuple as `gradients`, so
    that the stage below can begin its reconstruction, then the gradients without streams. `Worker.receive` joins them.
    """

    micro_batch: int
    streams: Streams
    gradients: Streams | None = None

    @property
    def tensors(self) -> Streams:
        """All tensors of the message."""
        return (*self.streams, *(self.gradients or ()))

    def with_tensors(self, tensors: Streams) -> "Message":
        """Return the message with other tensors, in the order of `tensors`."""
        count = len(self.streams)
        return Message(self.micro_batch, tensors[:count], None if self.gradients is None else tensors[count:])

    def bytes(self) -> int:
        """Return the payload of the message in bytes."""
        return payload(self.tensors)

    def to(self, device: torch.device) -> "Message":
        """Return the message on `device`; the message itself if it is already there."""
        if all(tensor.device == device for tensor in self.tensors):
            return self
        # A copy to the CPU must be synchronous, because the host could read the memory before the data has arrived.
        wait = device.type == "cpu"
        return self.with_tensors(tuple(tensor.to(device, non_blocking=not wait) for tensor in self.tensors))


class Channel:
    """The connection of one rank to the ranks that own the neighbouring stages.

    This class is the channel of a single process. It owns all stages, so there is nothing to send or to compare.
    `petra_core.distributed.ProcessChannel` overrides all methods. If there are several ranks, all must call each method
    except `send` and `collect` at the same steps.

    Args:
        stages: Consecutive stages that this rank owns.
        count: Number of stages J of all ranks.

    Attributes:
        staleness: Staleness of each stage. The pipeline that uses the channel sets it.
        steps: Number of steps since the channel was made or the pipeline, which sets it, loaded a state.
        run: Digest of the settings and initial weights with which all ranks began. The pipeline saves and loads it.
            Empty if a single process began.

    """

    staleness: tuple[int, ...] = ()
    steps = 0
    run = ""

    def __init__(self, stages: range, count: int) -> None:
        self.stages, self.count = stages, count

    @property
    def owns_all(self) -> bool:
        """Return whether this rank owns all stages."""
        return len(self.stages) == self.count

    def check_settings(
        self, settings: Mapping[str, Any], stages: Sequence[Stage], optimizer: OptimizerFactory | None
    ) -> None:
        """Compare the arguments of a new pipeline with those of all ranks.

        Args:
            settings: Values by name, which must be equal on all ranks.
            stages: Stages of the whole pipeline.
            optimizer: Factory of the optimizers.

        Raises:
            ValueError: If the channel does not fit them or belongs to another pipeline, or two ranks differ. All ranks
                raise it.

        """

    def check_step(self, micro_batch: int, inputs: Streams, target: object, learning_rate: float | None) -> None:
        """Compare the arguments of a step with those of all ranks, in the first steps and some later ones.

        Args:
            micro_batch: Number of the micro-batch that enters.
            inputs: Input of stage 0.
            target: Target of the loss.
            learning_rate: Last learning rate that was set for stage 0; None if none was set.

        Raises:
            ValueError: If the ranks of stage 0 and of the head have different micro-batches, or two ranks have
                different learning rates or numbers of micro-batches. All ranks raise it.

        """

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks on the CPU, in the order of the ranks; those of a single rank unchanged."""
        return tensors

    def expect(self, forward: int | None, backward: int | None) -> None:
        """Prepare for the messages that the neighbours send in a step.

        Args:
            forward: Number of the micro-batch whose message comes from below; None for no message.
            backward: Number of the micro-batch whose message comes from above; None for no message.

        """

    def send(self, stage: int, message: Message) -> None:
        """Send a message to `stage`, just below or above the stages of this rank, without waiting for its arrival."""

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for the messages that an action needs from other ranks, and return them.

        Args:
            stage: Stage of this rank.
            action: The action; None for all messages that are expected so far.

        Returns:
            The messages, oldest first.

        """
        return []

    def close(self) -> None:
        """Wait until all sent messages have arrived. Later messages may have other shapes.

        No micro-batch may be in flight.
        """

    def evaluation_input(self, streams: Streams) -> Streams:
        """Return the input of this rank in an evaluation: `streams` on the lowest rank, or else received streams."""
        return streams

    def evaluation_output(self, streams: Streams) -> Streams:
        """Pass on the output of this rank's stages in an evaluation.

        Args:
            streams: The output.

        Returns:
            The output of the highest rank, on every rank.

        """
        return streams
