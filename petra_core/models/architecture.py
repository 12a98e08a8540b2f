"""Define the depths, stems and block shapes that RevNet and ResNet share.

RevNet-18/34/50 have the layout of ResNet-18/34/50 (He et al. 2016, Table 1): four groups of residual blocks. Each group
except the first halves the resolution and doubles the channels. The families differ only in the blocks themselves, so
this module describes the layout once, as a list of `BlockShape`, and each family turns a shape into a stage.

This module is internal.
"""

from dataclasses import dataclass

from petra_core.errors import check_int

STEMS = ("cifar", "imagenet32", "imagenet")


@dataclass(frozen=True)
class BlockShape:
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

    @property
    def bottleneck(self) -> bool:
        """True for a bottleneck block, False for a basic block."""
        return self.inner_channels != self.out_channels


#: Number of blocks in each of the four groups, by depth.
GROUPS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
EXPANSION = {18: 1, 34: 1, 50: 4}  # ratio of a block's output channels to its inner channels


def residual_blocks(family: str, depth: int, *, num_classes: int, stem: str, width: int) -> list[BlockShape]:
    """Check the arguments of a network and return the shapes of its blocks in order.

    Args:
        family: Name of the network family, for error messages.
        depth: 18, 34 or 50.
        num_classes: Number of logits, at least 2.
        stem: One of `STEMS`.
        width: Output channels of the stem.

    Raises:
        ValueError: If `depth` or `stem` is unknown, `num_classes` is below 2 or `width` is below 1.
        TypeError: If `width` or `num_classes` is not an int.

    """
    if depth not in GROUPS:
        depths = ", ".join(map(str, GROUPS))
        raise ValueError(
            f"there is no {family} of depth {depth!r}; use one of {depths}, or models.chain() for any number of blocks"
        )
    check_int("width", width, 1)
    check_int("num_classes", num_classes, 2)
    if stem not in STEMS:
        raise ValueError(f"there is no stem {stem!r}; use one of {', '.join(map(repr, STEMS))}")
    blocks: list[BlockShape] = []
    channels = width
    for group, count in enumerate(GROUPS[depth]):
        inner = width << group
        for position in range(count):
            stride = 2 if group > 0 and position == 0 else 1
            blocks.append(BlockShape(channels, inner, inner * EXPANSION[depth], stride))
            channels = blocks[-1].out_channels
    return blocks
