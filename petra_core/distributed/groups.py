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


def new_group(ranks: Sequence[int], comm_device: torch.device, timeout: timedelta) -> dist.ProcessGroup:
    """Create a process group for tensors on the device `comm_device` and on the CPU. All of `ranks` must call it.

    The timeout is passed explicitly: torch's default for a new group is half an hour, regardless of the timeout of the
    default group. So is the GPU: without it torch 2.15 uses the GPU with the number LOCAL_RANK. With it, all versions
    of torch create one NCCL communicator per group, here and not at the first operation.

    torch derives the name of the group from the number of groups that this rank has created. All ranks must therefore
    create the same number of groups before.

    Args:
        ranks: The members, as ranks of the default group.
        comm_device: Device of the tensors to send; a GPU with its index.
        timeout: Timeout of an operation.

    """
    backend, gpu = ("cpu:gloo,cuda:nccl", comm_device) if comm_device.type == "cuda" else ("gloo", None)
    group = dist.new_group(list(ranks), timeout, backend, use_local_synchronization=True, device_id=gpu)
    assert not isinstance(group, int)  # torch returns an int on ranks outside the group
    return group
