"""Convert one tensor into the two streams of a reversible network, and back.

The obvious split, `tensor.chunk(2, dim=1)`, returns two views of one storage. A reversible stage passes one of its
input streams on and drops the other. With views, each message would keep the whole tensor alive, and the engine would
count only half of the bytes. The modules here therefore return streams with separate memory.
"""

import torch
from torch import Tensor, nn


class SplitStreams(nn.Module):
    """Layer that splits a tensor into two streams of half the channels."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, 2C, ...] to ([B, C, ...], [B, C, ...]), in the memory format of `value`.

        Raises:
            ValueError: If the number of channels is odd or 0, or there is no channel dimension.

        """
        if value.dim() < 2:
            raise ValueError(f"SplitStreams takes [batch, channels, ...], got shape {tuple(value.shape)}")
        channels = value.shape[1]
        if channels % 2 or channels == 0:
            raise ValueError(
                f"cannot split {channels} channels into two equal streams; give the preceding layer an even number of "
                f"output channels, such as {channels + channels % 2 or 2}"
            )
        first, second = value.chunk(2, dim=1)  # [B, C, ...] each
        layout = torch.contiguous_format
        if value.dim() == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last):
            layout = torch.channels_last
        return first.clone(memory_format=layout), second.clone(memory_format=layout)


class DuplicateStreams(nn.Module):
    """Layer that copies one tensor into both streams."""

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Map [B, ...] to ([B, ...], [B, ...]): two contiguous copies."""
        return (value.clone(memory_format=torch.contiguous_format), value.clone(memory_format=torch.contiguous_format))


class ConcatStreams(nn.Module):
    """Layer that concatenates the streams along the channels.

    Args:
        dim: Dimension of the channels: 1 for images, -1 for tokens.

    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, streams: tuple[Tensor, ...]) -> Tensor:
        """Map ([B, C, ...], [B, C, ...]) to [B, 2C, ...]; with dim=-1 ([B, ..., C], [B, ..., C]) to [B, ..., 2C].

        Raises:
            TypeError: If the argument is a tensor instead of a tuple.

        """
        if isinstance(streams, Tensor):
            raise TypeError(
                "ConcatStreams takes a tuple of streams, got one tensor; let the preceding stage return two streams"
            )
        return torch.cat(streams, dim=self.dim)
