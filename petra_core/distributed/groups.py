"""Create process groups, and define the error of a failed communication."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from petra_core.errors import PetraError

CPU = torch.device("cpu")
TIMEOUT = timedelta(minutes=5)


class ChannelError(PetraError, RuntimeError):
    """Error raised when a message does not arrive, or has an unexpected layout."""


def backend(comm_device: torch.device) -> str:
    """Return the torch.distributed backend for tensors on the device `comm_device` and on the CPU."""
    return "cpu:gloo,cuda:nccl" if comm_device.type == "cuda" else "gloo"


def new_group(ranks: Sequence[int], comm_device: torch.device, timeout: timedelta) -> dist.ProcessGroup:
    """Create a process group for tensors on the device `comm_device` and on the CPU. All of `ranks` must call it.

    The timeout is passed explicitly: torch's default for a new group is half an hour, regardless of the timeout of the
    default group.

    Args:
        ranks: The members, as ranks of the default group.
        comm_device: Device of the tensors to send.
        timeout: Timeout of an operation.

    """
    group = dist.new_group(list(ranks), timeout, backend(comm_device), use_local_synchronization=True)
    assert not isinstance(group, int)  # torch returns an int on ranks outside the group
    return group
