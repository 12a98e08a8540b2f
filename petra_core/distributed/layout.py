"""How the tensors of a message lie in memory: agreed once, by a header of fixed size before the first message.

The obvious way, a header before every message, doubles their number. All messages in one direction between two stages
are alike, so the receiver reads one header and then posts receives of exactly those bytes. Strides are part of it: with
others a kernel may be another one, which rounds differently. That is also why the layouts are not worked out before
anything is computed, say from the shape of a micro-batch: only the kernels themselves know what strides they give.

Internal: `petra_core.distributed` sends and receives.
"""

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from petra_core.tape import Streams

HEADER_BYTES = 1024
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(frozen=True)
class TensorLayout:
    """How a tensor lies in memory: its dtype, shape and strides."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorLayout":
        """The layout of a tensor."""
        return cls(str(tensor.dtype), tuple(tensor.shape), tensor.stride())

    def empty(self, device: torch.device) -> Tensor:
        """A tensor of this layout on `device`, its values not set."""
        return torch.empty_strided(self.shape, self.strides, dtype=DTYPES[self.dtype], device=device)


Layouts = tuple[tuple[TensorLayout, ...] | None, tuple[TensorLayout, ...] | None]  # of streams and gradients


def layout_of(tensors: Streams | None) -> tuple[TensorLayout, ...] | None:
    """The layouts of one side of a message, its streams or its gradients; None where there are none."""
    return None if tensors is None else tuple(map(TensorLayout.of, tensors))


def dense(tensors: Streams | None, device: torch.device) -> Streams | None:
    """The tensors on `device`, each without gaps (a copy only if it has some), with its strides where that allows."""
    if tensors is None:
        return None
    return tuple(
        tensor if torch.empty_like(tensor, device="meta").stride() == tensor.stride() else tensor.contiguous()
        for tensor in (tensor.detach().to(device).resolve_conj().resolve_neg() for tensor in tensors)
    )


def flat(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor as bytes, which every backend sends: uint8, in one dimension."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def header_of(layouts: Layouts) -> Tensor:
    """The layouts of a message as a tensor on the CPU, uint8 [HEADER_BYTES].

    Raises:
        ValueError: they do not fit.

    """
    sides = [None if side is None else [[t.dtype, t.shape, t.strides] for t in side] for side in layouts]
    text = json.dumps(sides).encode()
    if len(text) > HEADER_BYTES:
        raise ValueError(f"the layout of a message takes {len(text)} bytes, and {HEADER_BYTES} are provided for it")
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def layouts_in(header: Tensor) -> Layouts:
    """The layouts that `header_of` wrote."""
    streams, gradients = (
        None
        if side is None
        else tuple(TensorLayout(dtype, tuple(shape), tuple(strides)) for dtype, shape, strides in side)
        for side in json.loads(bytes(header.tolist()))
    )
    return streams, gradients
