"""Groups of ranks, and the error of a rank that lost another: what all traffic over torch.distributed shares."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from petra_core.errors import PetraError

__all__ = ["CPU", "PATIENCE", "ChannelError", "backend", "new_group"]

CPU = torch.device("cpu")
PATIENCE = timedelta(minutes=5)


class ChannelError(PetraError, RuntimeError):
    """A message did not come, or does not fit."""


def backend(wire: torch.device) -> str:
    """What carries tensors of the device `wire`, and of the CPU."""
    return "cpu:gloo,cuda:nccl" if wire.type == "cuda" else "gloo"


def new_group(ranks: Sequence[int], wire: torch.device, patience: timedelta) -> dist.ProcessGroup:
    """A process group of some ranks, for tensors of the device `wire` and the CPU; every one of the ranks calls this.

    Left to itself torch gives a group half an hour of patience, whatever that of the default group is.
    """
    group = dist.new_group(list(ranks), patience, backend(wire), use_local_synchronization=True)
    assert not isinstance(group, int)  # that stands for a rank which is not in the group
    return group
