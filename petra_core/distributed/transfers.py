"""Transfer tensors between two neighbouring ranks with torch.distributed.

A rank waits only for the message that its next action needs, and never for a message that it has sent. With a barrier
after every step, each step would take as long as the slowest forward plus the slowest backward. Therefore every
transfer starts immediately and independently of the others.

NCCL executes all transfers of a process group in order, on one CUDA stream, and a transfer may occupy the stream until
its counterpart begins. A gradient that the rank below will use in a later step would block the gradients of the rank
above. In an evaluation without a drain, the ranks would then wait for each other. Therefore each border between two
ranks has one group for each direction that neither rank uses for another border. A receive is enqueued only when its
message is used, because its kernel occupies part of the GPU until the counterpart begins. For the same reason, wait for
the current stream and not for the whole device (`torch.cuda.synchronize`): a send may end only after a later step of
the receiver.

NCCL's documentation allows several communicators at the same time only if the kernels of all fit on the GPU. Here at
most five wait at the same time: one for each group, and the all-reduce of the replicas.

The tests cover Gloo, also with transfers in the order of NCCL. NCCL itself has not been run, for lack of a machine with
several GPUs.

Internal to `petra_core.distributed`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.groups import ChannelError

EVALUATION_TAG = 1  # tag of evaluation messages, so that receives posted for training do not match them
NO_MICRO_BATCH = -1  # micro-batch number of messages outside training: evaluation, handshake and shutdown


@dataclass(frozen=True)
class Neighbour:
    """Neighbour in one direction: the rank that has the stage below or above this rank's stages.

    Attributes:
        place: Rank of the neighbour in the pipeline.
        stage: The neighbour's stage at the boundary.
        own_stage: This rank's stage at the boundary.
        timeout: Timeout of a transfer.
        comm_device: Device from which messages are sent, and on which they arrive.
        group: Process group of the direction.
        tag: Tag of the messages. Messages of different tags may overtake each other.
        ahead: Whether the receiver posts the receive of the next step early, which the sender completes when it closes.
            Gradients do not need it: they arrive at least a step early.

    """

    place: int
    stage: int
    own_stage: int
    timeout: timedelta
    comm_device: torch.device
    group: dist.ProcessGroup
    tag: int = 0
    ahead: bool = False

    def send(self, tensors: Sequence[Tensor], micro_batch: int) -> "Transfer":
        """Start to send dense one-dimensional tensors.

        Raises:
            ChannelError: If the neighbour has died.

        """
        return self._start(partial(dist.isend, group_dst=self.place), tensors, micro_batch)

    def receive(self, tensors: Sequence[Tensor], micro_batch: int) -> "Transfer":
        """Start to receive tensors. They arrive in the order in which they were sent.

        Raises:
            ChannelError: If the neighbour has died.

        """
        return self._start(partial(dist.irecv, group_src=self.place), tensors, micro_batch)

    def _start(self, operation: Callable[..., Any], tensors: Sequence[Tensor], micro_batch: int) -> "Transfer":
        try:
            works = [operation(tensor, group=self.group, tag=self.tag) for tensor in tensors]
        except RuntimeError as error:
            raise self.lost(micro_batch, error) from error
        return Transfer(self, tensors, micro_batch, works)

    def lost(self, micro_batch: int, error: RuntimeError) -> ChannelError:
        """Return the error of a failed transfer, which names both stages, their ranks and the message."""
        subject = f"micro-batch {micro_batch}" if micro_batch != NO_MICRO_BATCH else "an evaluation, handshake or drain"
        return ChannelError(
            f"{self.describe_own()} lost {self} while waiting for the message of {subject}: that process has died, or "
            f"has not answered for {self.timeout.total_seconds():g} s ({error})"
        )

    def describe_own(self) -> str:
        """Describe this side of the boundary."""
        return f"stage {self.own_stage} on rank {dist.get_rank()}"

    def __str__(self) -> str:
        return f"stage {self.stage} on rank {dist.get_global_rank(self.group, self.place)}"


@dataclass(eq=False)
class Transfer:
    """Tensors in flight, to or from a neighbour.

    Attributes:
        neighbour: Neighbour.
        tensors: Tensors to transfer. Do not read or write them before `wait` has returned.
        micro_batch: Number of the micro-batch of the message.
        works: Handles of torch.distributed.

    """

    neighbour: Neighbour
    tensors: Sequence[Tensor]
    micro_batch: int
    works: Sequence[Any]

    def wait(self) -> None:
        """Wait until the transfer has completed. With Gloo this may be called only once.

        On a GPU the host does not wait, but kernels that are enqueued afterwards do.

        Raises:
            ChannelError: If the neighbour has died or timed out.

        """
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            raise self.neighbour.lost(self.micro_batch, error) from error
