"""What the two families of residual networks share: depths, stems and the shapes of blocks.

RevNet-18/34/50 have the layout of ResNet-18/34/50 (He et al. 2016, Table 1): four groups of residual blocks, of which
each but the first halves the resolution and doubles the channels. They differ in what a block is, so the layout is
described once, here, as a list of `Block` shapes, and each family turns a shape into a stage.

This module is internal: it exports nothing to users.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

STEMS = ("cifar", "imagenet32", "imagenet")


@dataclass(frozen=True)
class Block:
    """The shape of one residual block; for a RevNet, of each of its two streams."""

    in_channels: int
    inner_channels: int  # of the 3x3 convolutions
    out_channels: int
    stride: int

    @property
    def keeps_shape(self) -> bool:
        """Whether output and input have one shape, so that the block can be inverted."""
        return self.stride == 1 and self.in_channels == self.out_channels


@dataclass(frozen=True)
class Architecture:
    """Number of blocks in each of the four groups, and of which kind."""

    groups: tuple[int, ...]
    bottleneck: bool

    @property
    def expansion(self) -> int:
        """Channels of a block's output for each channel inside it."""
        return 4 if self.bottleneck else 1

    def out_channels(self, width: int) -> int:
        """Channels after the last block."""
        return (width << (len(self.groups) - 1)) * self.expansion

    def blocks(self, width: int) -> Iterator[Block]:
        """The blocks in order, for a stem that leaves `width` channels."""
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
    """The layout of `family` at `depth`.

    Raises:
        ValueError: there is no such depth.

    """
    if depth not in ARCHITECTURES:
        depths = ", ".join(map(str, ARCHITECTURES))
        raise ValueError(
            f"there is no {family} of depth {depth!r}; use one of {depths}, or models.chain() for any number of blocks"
        )
    return ARCHITECTURES[depth]


def check_stem(stem: str) -> str:
    """Return `stem` if it is the name of one.

    Raises:
        ValueError: it is not; the message names the nearest, or all.

    """
    if stem not in STEMS:
        near = difflib.get_close_matches(str(stem).lower(), STEMS, n=2) or STEMS
        raise ValueError(f"there is no stem {stem!r}; did you mean {' or '.join(map(repr, near))}?")
    return stem
