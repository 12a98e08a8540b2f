"""Define the depths, stems and block shapes that RevNet and ResNet share.

RevNet-18/34/50 have the layout of ResNet-18/34/50 (He et al. 2016, Table 1): four groups of residual blocks. Each group
except the first halves the resolution and doubles the channels. The families differ only in the blocks themselves, so
this module describes the layout once, as a list of `Block` shapes, and each family turns a shape into a stage.

This module is internal.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

STEMS = ("cifar", "imagenet32", "imagenet")


@dataclass(frozen=True)
class Block:
    """Shape of one residual block. For a RevNet, the channels are those of each of the two streams.

    Attributes:
        in_channels: Channels of the input.
        inner_channels: Channels of the 3x3 convolutions.
        out_channels: Channels of the output.
        stride: Stride in height and width.

    """

    in_channels: int
    inner_channels: int
    out_channels: int
    stride: int

    @property
    def keeps_shape(self) -> bool:
        """True if output and input have the same shape, so that the block can be inverted."""
        return self.stride == 1 and self.in_channels == self.out_channels


@dataclass(frozen=True)
class Architecture:
    """Layout of a network.

    Attributes:
        groups: Number of blocks in each of the four groups.
        bottleneck: Whether the blocks are bottlenecks or basic blocks.

    """

    groups: tuple[int, ...]
    bottleneck: bool

    @property
    def expansion(self) -> int:
        """Ratio of a block's output channels to its inner channels."""
        return 4 if self.bottleneck else 1

    def out_channels(self, width: int) -> int:
        """Return the number of channels after the last block."""
        return (width << (len(self.groups) - 1)) * self.expansion

    def blocks(self, width: int) -> Iterator[Block]:
        """Yield the blocks in order, for a stem with `width` output channels."""
        channels = width
        for group, count in enumerate(self.groups):
            inner = width << group
            for position in range(count):
                stride = 2 if group > 0 and position == 0 else 1
                yield Block(channels, inner, inner * self.expansion, stride)
                channels = inner * self.expansion


ARCHITECTURES = {
    18: Architecture((2, 2, 2, 2), bottleneck=False),
    34: Architecture((3, 4, 6, 3), bottleneck=False),
    50: Architecture((3, 4, 6, 3), bottleneck=True),
}


def architecture(family: str, depth: int) -> Architecture:
    """Return the layout of a network of this depth.

    Args:
        family: Name of the network family, for the error message.
        depth: 18, 34 or 50.

    Raises:
        ValueError: If the depth is unknown.

    """
    if depth not in ARCHITECTURES:
        depths = ", ".join(map(str, ARCHITECTURES))
        raise ValueError(
            f"there is no {family} of depth {depth!r}; use one of {depths}, or models.chain() for any number of blocks"
        )
    return ARCHITECTURES[depth]


def check_stem(stem: str) -> str:
    """Return `stem` if it is one of `STEMS`.

    Raises:
        ValueError: If the stem is unknown. The message suggests the closest names.

    """
    if stem not in STEMS:
        near = difflib.get_close_matches(str(stem).lower(), STEMS, n=2) or STEMS
        raise ValueError(f"there is no stem {stem!r}; did you mean {' or '.join(map(repr, near))}?")
    return stem
