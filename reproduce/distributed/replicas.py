"""Combine the pipeline with data parallelism: R replicas of the network, whose gradients are averaged.

The ranks form a mesh, with stages along one axis and replicas along the other:

                     stages 0..2     stages 3..5
    replica 0          rank 0 ─────── rank 1          messages along a row: `petra_core.distributed`
                         │              │
    replica 1          rank 2 ─────── rank 3          mean gradients along a column: this module

The obvious way is DistributedDataParallel around the network. It averages gradients in the hooks of one backward
through the whole network. A pipeline has no such backward: each stage runs its backwards and updates at different
times. Here a stage averages its gradients right before its update, after its k backwards. It copies them into one flat
bucket, and one all-reduce averages the bucket in the group of the column.

This cannot deadlock. All replicas execute the same local programs, so the ranks of a column reach the updates of their
stages in the same order. A rank only waits for messages and means of earlier actions in these programs.

Weights stay bitwise equal in all replicas: they start equal, which the first update of a stage checks, and an
all-reduce gives every rank the same bits (both Gloo and NCCL compute each part of the sum on one rank, or in the same
order on all). The mean over replicas of the means over k micro-batches is the mean over all of them. R replicas
therefore train like one replica with R times the batch, except for BatchNorm: each replica normalises with the
statistics of its micro-batches and keeps separate running statistics. Only evaluation reads running statistics, and
uses their mean over the replicas (`average_statistics`). This equals running statistics that are updated with the mean
over all replicas, and does not affect training.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from petra_core.distributed.agreement import agree, digest
from petra_core.distributed.groups import CPU, TIMEOUT, ChannelError, new_group
from petra_core.stages import Stage

__all__ = ["Replicas"]


class Replicas:
    """Group of the ranks that have the same stages, one per replica. Each of these ranks creates this object.

    Args:
        ranks: Ranks in torch.distributed's default group, in ascending order. A single rank needs no process group.
        comm_device: Device from which gradients are sent: the GPU of this process (over NCCL) or the CPU (over Gloo).
        timeout: Timeout of an all-reduce.

    Attributes:
        index: Index of this replica.
        count: Number of replicas R.

    """

    def __init__(
        self, ranks: Sequence[int] = (0,), *, comm_device: torch.device = CPU, timeout: timedelta = TIMEOUT
    ) -> None:
        self._ranks, self._comm_device, self._timeout = tuple(ranks), comm_device, timeout
        self.count = len(self._ranks)
        self._group = new_group(ranks, comm_device, timeout) if self.count > 1 else None
        self.index = self._ranks.index(dist.get_rank()) if self.count > 1 else 0
        self._averaged = False  # whether the buffers are currently replaced by means

    def average_gradients(self, index: int, version: int, stage: Stage) -> None:
        """Replace a stage's gradients by their mean over the replicas. Use it as `Pipeline(before_update=...)`.

        A hook that reads gradients, for example to clip them, must call this first.

        Args:
            index: Index of the stage.
            version: Number of the update.
            stage: Stage whose gradients are averaged.

        Raises:
            ChannelError: If another replica has died or timed out.
            ValueError: If the initial weights of the stage differ between the replicas.

        """
        parameters = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        if not parameters or self._group is None:
            return
        if version == 0:
            weights = {f"weights of stage {index}": [digest(parameter) for parameter in stage.parameters()]}
            agree(self._group, weights, "Begin every replica with the same weights")
        # If a function skips a branch for some micro-batches, some replicas lack a gradient that others have. They send
        # zeros. A flag for each parameter shows whether any replica has a gradient; if none has, it stays None.
        present = torch.tensor([float(p.grad is not None) for p in parameters])
        present = present.to(parameters[0].device, non_blocking=True)  # otherwise the host would wait for the GPU
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        *means, shares = self._means([*gradients, present], f"the gradients for update {version} of stage {index}")
        for place, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(mean)
            elif shares[place]:
                parameter.grad = mean.clone()

    @contextlib.contextmanager
    def average_statistics(self, model: nn.Module) -> Iterator[None]:
        """Replace floating-point buffers, such as running statistics, by their mean over the replicas in a context.

        On exit each replica gets its original tensors back. Buffers on the meta device are skipped. A nested context
        does nothing.

        Raises:
            ChannelError: If another replica has died or timed out.

        """
        if self._averaged:
            yield
            return
        buffers = list(_buffers(model)) if self.count > 1 else []
        # In float64, where the sum of masks with the lowest value of float32 is finite.
        wide = [buffer.double() for _, _, buffer in buffers]
        means = self._means(wide, "the statistics of BatchNorm") if buffers else []
        for (module, name, buffer), mean in zip(buffers, means, strict=True):
            module._buffers[name] = mean.to(buffer.dtype)
        self._averaged = True
        try:
            yield
        finally:
            self._averaged = False
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    def _means(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Return the mean of each tensor over the replicas, with one all-reduce."""
        bucket = torch.cat([tensor.flatten() for tensor in tensors])
        mean = self._sum(bucket, what) / self.count
        parts = torch.split(mean, [tensor.numel() for tensor in tensors])
        return [part.view(t.shape).to(t.dtype) for part, t in zip(parts, tensors, strict=True)]

    def _sum(self, value: Tensor, what: str) -> Tensor:
        sent = value.to(self._comm_device, copy=True)
        try:
            dist.all_reduce(sent, group=self._group)
        except RuntimeError as error:
            others = ", ".join(str(rank) for rank in self._ranks if rank != dist.get_rank())
            raise ChannelError(
                f"rank {dist.get_rank()} lost another replica (one of ranks {others}) during the all-reduce of {what}: "
                f"that process has died, or has not answered for {self._timeout.total_seconds():g} s ({error})"
            ) from error
        return sent.to(value.device)


def _buffers(model: nn.Module) -> Iterable[tuple[nn.Module, str, Tensor]]:
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and not buffer.is_meta:
                yield module, name, buffer
