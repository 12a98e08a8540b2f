"""How one tensor travels between two neighbours, by torch.distributed.

A rank may wait for nothing but the message that its next action needs, and never for one that it has sent: a barrier
after every step would make each step as long as the longest forward and the longest backward together. So every
transfer starts at once and alone, and each direction of a pipeline has a process group of its own: upwards forwards,
downwards gradients. `isend` and `irecv` of NCCL then use a communicator, and a CUDA stream, for each pair of ranks and
each direction, so that a kernel that waits for its counterpart keeps no other message waiting. Over NCCL a receive is
enqueued where its message is used, not before: its kernel occupies a part of the GPU until the counterpart has come.

Over Gloo all of this is tested. Over NCCL it has not been run: no machine with several GPUs was at hand.

Internal: `petra_core.distributed` sends and receives.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.groups import ChannelError

__all__ = ["OUTSIDE", "Peer", "Transfer"]

OUTSIDE = -1  # in place of the number of a micro-batch: of an evaluation, of the greeting, or of the end


@dataclass(frozen=True)
class Peer:
    """A neighbour in one direction: another rank that owns the stage below or above ours.

    Attributes:
        place: its rank in the pipeline.
        stage: its stage at the border.
        own_stage: our stage there.
        patience: how long it is waited for.
        group: of torch.distributed, that of the direction.

    """

    place: int
    stage: int
    own_stage: int
    patience: timedelta
    group: dist.ProcessGroup

    def send(self, tensor: Tensor, micro_batch: int, tag: int = 0) -> "Transfer":
        """Start to send a dense tensor in one dimension. Raises: ChannelError: the neighbour has died."""
        try:
            work = dist.isend(tensor, group=self.group, group_dst=self.place, tag=tag)
        except RuntimeError as error:
            raise self.lost(micro_batch, error) from error
        return Transfer(self, tensor, micro_batch, work)

    def receive(self, tensor: Tensor, micro_batch: int, tag: int = 0) -> "Transfer":
        """Start to receive a tensor; of all with one tag the order is the same on both sides.

        Raises:
            ChannelError: the neighbour has died.

        """
        try:
            work = dist.irecv(tensor, group=self.group, group_src=self.place, tag=tag)
        except RuntimeError as error:
            raise self.lost(micro_batch, error) from error
        return Transfer(self, tensor, micro_batch, work)

    def lost(self, micro_batch: int, error: RuntimeError) -> ChannelError:
        """Return the error that says who lost whom, and over what."""
        what = f"micro-batch {micro_batch}" if micro_batch != OUTSIDE else "an evaluation, or the first contact"
        return ChannelError(
            f"stage {self.own_stage} on rank {dist.get_rank()} lost stage {self.stage} on rank "
            f"{dist.get_global_rank(self.group, self.place)} over the message of {what}: that process has died, or has "
            f"been silent for {self.patience.total_seconds():g} s ({error})"
        )


@dataclass(eq=False)
class Transfer:
    """A tensor on its way to a neighbour, or from one.

    Attributes:
        peer: the neighbour.
        tensor: not to be touched before `wait` has returned.
        micro_batch: whose message it belongs to.
        work: what torch made of it.

    """

    peer: Peer
    tensor: Tensor
    micro_batch: int
    work: Any

    def wait(self) -> None:
        """Wait until it has arrived; on a GPU only what is enqueued from now on waits. Gloo allows no second call.

        Raises:
            ChannelError: the neighbour has died, or has been silent for too long.

        """
        try:
            self.work.wait()
        except RuntimeError as error:
            raise self.peer.lost(self.micro_batch, error) from error
