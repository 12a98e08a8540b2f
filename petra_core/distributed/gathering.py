"""Gather the tensors of all ranks on the CPU of every rank: first names and layouts, then one tensor at a time.

Internal: `petra_core.distributed.process_channel` uses this to gather the state of a trained network.
"""

import dataclasses
import json
from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.agreement import exchange
from petra_core.distributed.groups import CPU, ChannelError
from petra_core.distributed.layout import TensorLayout, dense, flat

__all__ = ["gather"]


def gather(group: dist.ProcessGroup, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of all ranks by name, in the order of the ranks. Collective: every rank must call it.

    If several ranks have the same name, the tensor of the lowest of these ranks is returned.

    Raises:
        ChannelError: If a rank has died or does not make this call.

    """
    own = dict(zip(tensors, dense(tuple(tensors.values()), CPU) or (), strict=True))
    layouts = {name: dataclasses.astuple(TensorLayout.of_tensor(tensor)) for name, tensor in own.items()}
    gathered: dict[str, Tensor] = {}
    for source, text in enumerate(exchange(group, json.dumps(layouts))):
        sends = source == dist.get_rank(group)
        for name, (dtype, shape, strides) in json.loads(text).items():
            if name in gathered:
                continue
            tensor = own[name] if sends else TensorLayout(dtype, tuple(shape), tuple(strides)).empty(CPU)
            try:
                dist.broadcast(flat(tensor), group=group, group_src=source)
            except RuntimeError as error:
                raise ChannelError(
                    f"rank {dist.get_rank()} lost another rank while gathering {name} of rank "
                    f"{dist.get_global_rank(group, source)}: that process has died or timed out ({error})"
                ) from error
            gathered[name] = tensor
    return gathered
