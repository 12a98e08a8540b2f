"""How tensors travel between neighbours: each at once, or all of a tick in one operation at its end.

The obvious way is to post a receive as early as possible and a send as soon as there is something to send. Over Gloo it
is done so. Over NCCL every operation is a kernel: it occupies a part of the GPU until the neighbour's kernel has met
it, and CUDA does not promise that kernels of two streams run side by side. A receive that is posted before the
computation it waits for may keep that computation from the GPU, here or, by way of the neighbour, there; and of two
operations that two ranks start in opposite orders, each may wait for the other. Then all hang.

So over NCCL what a rank sends and receives in a tick is gathered, and is one operation, `batch_isend_irecv`, behind the
computation of that tick. It travels while the inner stages compute in the next tick; stages at the border wait for it:

    tick t      F B of all stages, ─ send and receive ─┐
    tick t+1    F B of inner stages                    │
                F B of border stages  ◀────── wait ────┘

The operation of tick t waits for computations of tick t at most, and these for operations of tick t-1 at most, on any
rank. So nothing waits in a circle, even on a GPU that runs one kernel after the other in the order of their start. The
price is that a message waits for the end of its tick, and the operation of the next tick for all messages of this one:
where neighbours take turns at a stage, for the slowest of them.

Internal: `petra_core.distributed` sends and receives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.groups import ChannelError

__all__ = ["OUTSIDE", "Exchange", "Peer", "Transfer"]

OUTSIDE = -1  # in place of the number of a micro-batch: of an evaluation, or of the greeting


@dataclass(frozen=True)
class Peer:
    """A neighbour: another rank that owns the stage below or above ours.

    Attributes:
        place: its rank in the pipeline.
        stage: its stage at the border.
        own_stage: our stage there.
        patience: how long it is waited for.

    """

    place: int
    stage: int
    own_stage: int
    patience: timedelta


@dataclass(eq=False)
class Transfer:
    """A tensor on its way to a neighbour, or from one.

    Attributes:
        operation: `dist.isend` or `dist.irecv`.
        tensor: dense, in one dimension; not to be touched before `wait` has returned.
        peer: the neighbour.
        micro_batch: whose message it belongs to.
        group: of torch.distributed.
        work: what torch made of it; None until it is started.
        parties: of all transfers that torch made one work of, the peers and micro-batches; none until then.

    """

    operation: Callable[..., Any]
    tensor: Tensor
    peer: Peer
    micro_batch: int
    group: dist.ProcessGroup
    work: Any = None
    parties: Sequence[tuple[Peer, int]] = ()

    @property
    def arrived(self) -> bool:
        """Whether it is known to have arrived; Gloo tells only who waits."""
        return self.work is not None and bool(self.work.is_completed())

    def wait(self) -> None:
        """Wait until it has arrived; on a GPU only what is enqueued from now on waits. Gloo allows no second call.

        Raises:
            ChannelError: the neighbour has died, or has been silent for too long.

        """
        try:
            self.work.wait()
        except RuntimeError as error:
            raise _lost(self.parties, self.group, error) from error


class Exchange:
    """Starts transfers between the ranks of a group, all of which make the same choice between the two ways.

    Args:
        group: of torch.distributed.
        batched: whether transfers are gathered, and started together by `end`; otherwise each starts at once.

    """

    def __init__(self, group: dist.ProcessGroup, *, batched: bool) -> None:
        self.group, self.batched = group, batched
        self._gathered: list[Transfer] = []

    def send(self, tensor: Tensor, peer: Peer, micro_batch: int, *, at_once: bool = False) -> Transfer:
        """A transfer to a neighbour; `at_once` for what is read by the CPU before a tick ends."""
        return self._add(Transfer(dist.isend, tensor, peer, micro_batch, self.group), at_once=at_once)

    def receive(self, tensor: Tensor, peer: Peer, micro_batch: int, *, at_once: bool = False) -> Transfer:
        """A transfer from a neighbour; of all between two ranks in one direction the order is the same on both."""
        return self._add(Transfer(dist.irecv, tensor, peer, micro_batch, self.group), at_once=at_once)

    def end(self) -> None:
        """Start what has been gathered. Every rank calls this when the computations of a tick are enqueued.

        Raises:
            ChannelError: a neighbour has died.

        """
        together, self._gathered = self._gathered, []
        if together:
            self._start(together)

    def _add(self, transfer: Transfer, *, at_once: bool) -> Transfer:
        if self.batched and not at_once:
            self._gathered.append(transfer)
        else:
            self._start([transfer])
        return transfer

    def _start(self, transfers: Sequence[Transfer]) -> None:
        parties = [(transfer.peer, transfer.micro_batch) for transfer in transfers]
        try:
            works = dist.batch_isend_irecv(
                [dist.P2POp(t.operation, t.tensor, group=self.group, group_peer=t.peer.place) for t in transfers]
            )
        except RuntimeError as error:
            raise _lost(parties, self.group, error) from error
        shared = len(works) < len(transfers)  # NCCL's is one for all, Gloo has one for each
        for transfer, party, work in zip(transfers, parties, works * len(transfers) if shared else works, strict=True):
            transfer.work, transfer.parties = work, parties if shared else [party]


def _lost(parties: Sequence[tuple[Peer, int]], group: dist.ProcessGroup, error: RuntimeError) -> ChannelError:
    """The error that says who lost whom, and over what; of several it is not known which."""
    silent = []
    for peer, micro_batch in dict.fromkeys(parties):
        what = f"micro-batch {micro_batch}" if micro_batch != OUTSIDE else "an evaluation, or the first contact"
        silent.append(
            f"stage {peer.own_stage} on rank {dist.get_rank()} lost stage {peer.stage} on rank "
            f"{dist.get_global_rank(group, peer.place)} over the message of {what}"
        )
    patience = parties[0][0].patience.total_seconds()
    return ChannelError(
        f"{', or '.join(silent)}: that process has died, or has been silent for {patience:g} s ({error})"
    )
