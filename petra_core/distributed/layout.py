"""Dtypes, shapes and strides of a message's tensors, exchanged in a header before the first message after a drain.

A header before every message would double the number of messages. Between two drains all messages in one direction
between two stages have the same layout, so the receiver reads one header and then posts receives of the right size.
Strides are part of the layout, because they select the kernel, and different kernels round differently. For the same
reason the layout cannot be derived from the shape of a micro-batch: only running the kernels shows the strides of their
outputs.

Internal to `petra_core.distributed`.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from petra_core.tape import Streams

HEADER_BYTES = 1024


class TensorLayout(NamedTuple):
    """Dtype, shape and strides of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> "TensorLayout":
        """Return the layout of a tensor."""
        return cls(str(tensor.dtype), tuple(tensor.shape), tensor.stride())

    @classmethod
    def of_json(cls, fields: Sequence[Any]) -> "TensorLayout":
        """Return the layout that JSON has encoded as lists."""
        dtype, shape, strides = fields
        return cls(dtype, tuple(shape), tuple(strides))

    def empty(self, device: torch.device) -> Tensor:
        """Return an uninitialised tensor of this layout on `device`."""
        dtype = getattr(torch, self.dtype.removeprefix("torch."))
        return torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device)


#: Layouts of a message's streams and of its gradients; None for a message without gradients.
Layouts = tuple[tuple[TensorLayout, ...], tuple[TensorLayout, ...] | None]


def layout_of(tensors: Streams) -> tuple[TensorLayout, ...]:
    """Return the layouts of a message's streams or gradients."""
    return tuple(map(TensorLayout.of_tensor, tensors))


def dense(tensors: Streams, device: torch.device) -> Streams:
    """Return the tensors on `device`, each dense in memory.

    A tensor that is already dense keeps its strides; one with gaps is copied.
    """
    return tuple(
        tensor if torch.empty_like(tensor, device="meta").stride() == tensor.stride() else tensor.contiguous()
        for tensor in (tensor.detach().to(device).resolve_conj().resolve_neg() for tensor in tensors)
    )


def flat(tensor: Tensor) -> Tensor:
    """Return the memory of a dense tensor as one-dimensional uint8, a dtype that every backend can send."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def header_of(layouts: Layouts) -> Tensor:
    """Encode the layouts of a message as a tensor on the CPU, uint8 [HEADER_BYTES].

    Raises:
        ValueError: If they do not fit into HEADER_BYTES.

    """
    text = json.dumps(layouts).encode()
    if len(text) > HEADER_BYTES:
        raise ValueError(
            f"the layout of a message takes {len(text)} bytes, expected at most {HEADER_BYTES}; let the stage below "
            f"the boundary between two ranks return fewer tensors"
        )
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def layouts_in(header: Tensor) -> Layouts:
    """Decode the layouts in a tensor that `header_of` returned."""
    streams, gradients = json.loads(bytes(header.tolist()))
    decoded = None if gradients is None else tuple(map(TensorLayout.of_json, gradients))
    return tuple(map(TensorLayout.of_json, streams)), decoded
