"""Build a chain of identical reversible blocks, of any length.

A RevNet-18 hides the effect of approximate inversion: each of its buffered stages passes an exact stored input down, so
reconstruction errors grow only along consecutive reversible stages, and RevNet-18 has at most two in a row. The chain
consists of a buffered stem, `depth` consecutive reversible basic blocks of equal width and resolution, and a head.
"""

from petra_core.errors import check_int
from petra_core.models.revnet import IMAGE_CHANNELS, basic_residual, split_stem, streams_head
from petra_core.stages import ReversibleStage, Stage


def chain(
    depth: int, *, num_classes: int, channels: int = 64, stem_stride: int = 1, in_channels: int = IMAGE_CHANNELS
) -> list[Stage]:
    """Build a constant-width network in which all stages except stem and head are reversible.

    Args:
        depth: Number of reversible blocks, at least 0.
        num_classes: Number of logits, at least 2.
        channels: Channels of each stream.
        stem_stride: Stride of the 3x3 convolution in the stem.
        in_channels: Channels of the images.

    Returns:
        The J = depth + 2 stages, for images [B, in_channels, H, W].

    Raises:
        ValueError: If a number is below its minimum.
        TypeError: If a number is not an int.

    """
    check_int("depth", depth, 0)
    check_int("num_classes", num_classes, 2)
    check_int("channels", channels, 1)
    check_int("stem_stride", stem_stride, 1)
    check_int("in_channels", in_channels, 1)
    return [
        split_stem(in_channels, channels, 3, stem_stride, pool=False),
        *(ReversibleStage(basic_residual(channels)) for _ in range(depth)),
        streams_head(channels, num_classes),
    ]
