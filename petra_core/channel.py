"""The channel that carries messages between ranks, as the pipeline sees it.

A pipeline whose stages all live in one process hands messages over itself. Where other ranks own some of the stages, it
gives a channel what goes to them and asks it for what comes from them; nothing else differs. Both sides know from the
staleness which messages a step brings, so nothing is announced and nobody is asked.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from petra_core.optimizers import OptimizerFactory
from petra_core.schedule import Action
from petra_core.stages import Stage
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["Channel", "check_channel"]


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
    def evaluation_input(self, streams: Streams) -> Streams:
        """The input of this rank's stages in an evaluation: what the rank below sends; on the lowest `streams`."""

    @abc.abstractmethod
    def evaluation_output(self, streams: Streams) -> Streams:
        """Send `streams`, the output of this rank's stages in an evaluation, up.

        Returns:
            The output of the highest rank, on every rank.

        """


def check_channel(channel: Channel | None, stages: int, seed: int | None) -> None:
    """Check that a pipeline's channel fits its other arguments. Raises: ValueError: it does not."""
    if channel is None:
        return
    if seed is None:
        raise ValueError(
            "over several processes random numbers must not depend on where a stage runs: give the pipeline a seed"
        )
    if channel.count != stages:
        raise ValueError(f"the channel is for {channel.count} stages, the network has {stages}")
