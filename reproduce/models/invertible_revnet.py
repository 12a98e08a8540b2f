"""Build RevNet-18, -34 and -50 without buffered down-sampling: all stages between stem and head are reversible.

The network of the paper buffers the inputs of its stem and of three or four down-sampling stages. For RevNet-50 these
buffers are most of PETRA's memory (Table 3). This variant down-samples the streams by pixel-unshuffle, a permutation
(`reproduce.models.permutation`, after i-RevNet, Jacobsen et al. 2018). Stem, blocks and head are one stage each, as in
the paper, so J is 10 or 18: the permutation is merged with the block that follows it.

A permutation keeps the number of elements, so the channels grow by 4 where the paper's grow by 2: 64, 256, 1024, 4096
per stream at width 64. Two 3x3 convolutions on 4096 channels would have 300 million weights. Two rules reduce the
number of parameters to the paper's:

    block   F is a bottleneck at every depth: conv1x1 S -> n, conv3x3 n -> n, conv1x1 n -> S, each with BN and ReLU.
            n is the largest width at which the block has no more parameters than the paper's block at that position.
    head    After the global average over the image, groups of channels are averaged, down to the number of features
            of the paper's head. The channels of a group are neighbouring pixels, so this extends the global average.

At width 64 the number of parameters is then at most 0.21 % below the paper's, at every depth and for every data set.

The cost: a stream has the same number of elements after the last block as after the stem, so messages and graphs of the
upper stages do not shrink with the resolution. Messages of RevNet-18 have twice the paper's bytes. Those of RevNet-50
have two thirds, because the paper's RevNet-50 has streams that are four times as wide.
"""

import math

import torch
from torch import Tensor, nn

from petra_core.models.architecture import BlockShape, residual_blocks
from petra_core.models.revnet import IMAGE_CHANNELS, bottleneck_residual, revnet, split_stem
from petra_core.models.streams import ConcatStreams
from petra_core.stages import HeadStage, ReversibleStage, Stage, merge
from reproduce.models.permutation import PixelUnshuffleStage

FACTOR = 2  # every down-sampling divides height and width by it


class AverageChannels(nn.Module):
    """Layer that averages groups of neighbouring channels: [B, C] -> [B, features]."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, value: Tensor) -> Tensor:
        return value.reshape(len(value), self.features, -1).mean(2)

    def extra_repr(self) -> str:
        return f"features={self.features}"


def _inner_channels(channels: int, parameters: int) -> int:
    """Return the largest n for which a bottleneck `channels` -> n -> n -> `channels` has at most `parameters`.

    The bottleneck has 2·n·channels + 9·n² weights, and a bias and two BatchNorm parameters for each of its 2·n +
    channels outputs.
    """
    half_b, c = channels + 3, 3 * channels - parameters  # coefficients of 9 n² + 2 half_b n + c <= 0
    return max(1, (math.isqrt(max(0, half_b**2 - 9 * c)) - half_b) // 9)


def invertible_revnet(depth: int, *, num_classes: int, stem: str = "cifar", width: int = 64) -> list[Stage]:
    """Build a RevNet in which only stem and head buffer inputs.

    Args:
        depth: 18, 34 or 50. Determines the layout and the number of parameters to match.
        num_classes: Number of logits, at least 2.
        stem: "cifar" and "imagenet32" are the same: 3x3, stride 1, no pooling. "imagenet" is 7x7, stride 2, followed by
            2x2 max-pooling.
        width: Channels of each stream in the first group of blocks; 64 in the paper.

    Returns:
        The J stages, 10 for depth 18 and 18 for depths 34 and 50. They take images [B, 3, H, W]. After the stem, height
        and width must be divisible by 8.

    Raises:
        ValueError: If `depth` or `stem` is unknown, `num_classes` is below 2 or `width` is below 1.
        TypeError: If `width` or `num_classes` is not an int.

    """
    blocks = residual_blocks("invertible RevNet", depth, num_classes=num_classes, stem=stem, width=width)
    with torch.device("meta"):
        published = revnet(depth, num_classes=num_classes, stem=stem, width=width)
    large = stem == "imagenet"
    stages: list[Stage] = [split_stem(IMAGE_CHANNELS, width, *((7, 2) if large else (3, 1)), pool=large)]
    channels = width
    for block, place in zip(blocks, published[1:-1], strict=True):
        before: list[Stage] = []
        if block.stride > 1:
            before.append(PixelUnshuffleStage(FACTOR))
            channels *= FACTOR**2
        inner = _inner_channels(channels, sum(parameter.numel() for parameter in place.parameters()))
        stages.append(merge([*before, ReversibleStage(bottleneck_residual(BlockShape(channels, inner, channels, 1)))]))
    features = 2 * blocks[-1].out_channels
    pooled = nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), AverageChannels(features))
    stages.append(HeadStage(nn.Sequential(*pooled, nn.Linear(features, num_classes))))
    return stages
