"""Data parallelism beside the pipeline: R replicas of the network, one mean gradient.

The ranks form a mesh. Along one direction stages, along the other replicas:

                     stages 0..2     stages 3..5
    replica 0          rank 0 ─────── rank 1          messages along a row: `petra_core.distributed`
                         │              │
    replica 1          rank 2 ─────── rank 3          mean gradients along a column: here

The obvious way, DistributedDataParallel around the network, averages in the hooks of one backward through the whole of
it, and a pipeline has no such backward: each stage has its own, and updates at its own tick. So the mean is taken where
a stage updates, after its k backwards: all its gradients in one flat bucket, one all-reduce in the group of the column.

No deadlock: all replicas execute the same local programs, so the ranks of a column come to the updates of their stages
in the same order; and what a rank waits for, a message or a mean, is made by actions that come before it in these.

Weights stay bitwise equal in all replicas, because they begin equal and see the same mean: an all-reduce gives every
rank the same bits (Gloo and NCCL alike: each part of the sum is made in one place, or in the same order everywhere).
The mean over replicas of means over k micro-batches is that over all of them, so R replicas train as one with R times
the batch would, but for the statistics of BatchNorm: each replica normalises with those of its own micro-batches, and
keeps its own running ones. Running statistics are needed for evaluation only, where their mean over the replicas takes
their place (`averaged_statistics`). That equals running statistics updated with the mean over all replicas, and does
not affect training.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from petra_core.distributed.groups import CPU, PATIENCE, ChannelError, new_group
from petra_core.stages import Stage

__all__ = ["Replicas"]


class Replicas:
    """The ranks that have the same stages as this one, a replica each. Every one of them makes this object.

    Args:
        ranks: theirs, in torch.distributed's default group, rising; one alone needs no group.
        wire: the device on which gradients are sent: the GPU of this process, over NCCL, or the CPU, over Gloo.
        patience: how long the others are waited for.

    Attributes:
        index: number of this replica.
        count: R.

    """

    def __init__(
        self, ranks: Sequence[int] = (0,), *, wire: torch.device = CPU, patience: timedelta = PATIENCE
    ) -> None:
        self._ranks, self._wire, self._patience = tuple(ranks), wire, patience
        self.count = len(self._ranks)
        self._group = new_group(ranks, wire, patience) if self.count > 1 else None
        self.index = self._ranks.index(dist.get_rank()) if self.count > 1 else 0
        self._averaged = False  # whether buffers are means at the moment

    def average_gradients(self, index: int, version: int, stage: Stage) -> None:
        """Replace a stage's gradients by their mean over the replicas: for `Pipeline(before_update=...)`.

        A hook that looks at gradients, to clip them, say, calls this first.

        Raises:
            ChannelError: another replica has died or hangs.

        """
        parameters = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        if not parameters or self.count == 1:
            return
        # A function that leaves out a branch now and then gives some replicas gradients that others have not: zeros
        # are sent for those, and which there are, so that what nobody has stays None.
        present = torch.ones(len(parameters), device=parameters[0].device)
        gradients: list[Tensor] = []
        for place, parameter in enumerate(parameters):
            if parameter.grad is None:
                present[place] = 0
            gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        *means, shares = self._means([*gradients, present], f"update {version} of stage {index}")
        for place, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif shares[place]:
                parameter.grad = mean.clone()

    @contextlib.contextmanager
    def averaged_statistics(self, model: nn.Module) -> Iterator[None]:
        """Context in which buffers of floating point, such as running statistics, are their mean over the replicas.

        Afterwards each replica has its own again, the very tensors. Modules on the meta device are left out. Entered
        again inside, it does nothing: they are means already.

        Raises:
            ChannelError: another replica has died or hangs.

        """
        if self._averaged:
            yield
            return
        buffers = list(_buffers(model)) if self.count > 1 else []
        means = self._means([buffer for _, _, buffer in buffers], "the statistics of BatchNorm") if buffers else []
        for (module, name, _), mean in zip(buffers, means, strict=True):
            module._buffers[name] = mean
        self._averaged = True
        try:
            yield
        finally:
            self._averaged = False
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor over the replicas. Raises: ChannelError: another replica has died or hangs."""
        return self._sum(value, "a sum") if self.count > 1 else value

    def _means(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """The mean of each tensor over the replicas, by one all-reduce."""
        bucket = torch.cat([tensor.flatten() for tensor in tensors])
        mean = self._sum(bucket, what) / self.count
        parts = torch.split(mean, [tensor.numel() for tensor in tensors])
        return [part.view(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]

    def _sum(self, value: Tensor, what: str) -> Tensor:
        sent = value.to(self._wire, copy=True)
        try:
            dist.all_reduce(sent, group=self._group)
        except RuntimeError as error:
            others = ", ".join(str(rank) for rank in self._ranks if rank != dist.get_rank())
            raise ChannelError(
                f"rank {dist.get_rank()} lost another replica (one of ranks {others}) over {what}: that process has "
                f"died, or has been silent for {self._patience.total_seconds():g} s ({error})"
            ) from error
        return sent.to(value.device)


def _buffers(model: nn.Module) -> Iterable[tuple[nn.Module, str, Tensor]]:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and not buffer.is_meta:
                yield module, name, buffer
