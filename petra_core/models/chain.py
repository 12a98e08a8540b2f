"""A chain of equal reversible blocks, of any length.

What approximate inversion does cannot be learnt on a RevNet-18: each of its buffered stages hands an exact stored
input down, so a reconstruction error lives only inside a run of consecutive reversible stages, and RevNet-18 has runs
of at most two. The chain is one single run, as long as one likes: a buffered stem, `depth` basic blocks of one width
and resolution, and a head.
"""

from petra_core.arguments import check_int
from petra_core.models.revnet import IMAGE_CHANNELS, basic_residual, split_stem, streams_head
from petra_core.stages import ReversibleStage, Stage


def chain(
    depth: int, *, num_classes: int, channels: int = 64, stem_stride: int = 1, in_channels: int = IMAGE_CHANNELS
) -> list[Stage]:
    """The stages of a constant-width network that is reversible but for stem and head.

    Args:
        depth: reversible blocks, at least 0.
        num_classes: logits of the head, at least 2.
        channels: of each stream.
        stem_stride: by how much the 3x3 stem lowers the resolution.
        in_channels: of the images.

    Returns:
        J = depth + 2 stages, for images [B, in_channels, H, W].

    Raises:
        ValueError: a number below its minimum.
        TypeError: a number that is not an int.

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
