"""RevNet-18, -34 and -50 without a stage that keeps its inputs: down-sampling by pixel-unshuffle.

The network of the paper buffers the inputs of its stem and of three or four down-sampling stages, and for RevNet-50
those buffers are most of what PETRA holds (Table 3). Here the streams are down-sampled by a permutation
(`petra_core.models.permutation`, after i-RevNet, Jacobsen et al. 2018), so that every stage between stem and head is
reversible. The layout stays: a stage for the stem, for every block and for the head, so J is 10 or 18; the permutation
is merged with the block after it.

A permutation keeps the number of elements, so channels grow by 4 where the paper's grow by 2: 64, 256, 1024, 4096 of
each stream at width 64. Two 3x3 convolutions on 4096 channels would have 300 million weights. Two rules bring the sizes
back to the paper's:

    block   F is a bottleneck at every depth, conv1x1 S -> n, conv3x3 n -> n, conv1x1 n -> S, each with BN and ReLU; n
            is the largest width at which the block has no more parameters than the block of the paper's network at
            its place
    head    after the global average over the image, channels are averaged in groups, down to as many features as the
            paper's head has. The channels of a group hold places of the image, so this is more of the same average

The price: a stream has as many elements behind the last block as behind the stem, so messages and graphs of the upper
stages do not shrink with the resolution. RevNet-18 has twice the bytes in messages of the paper's, RevNet-50, whose
paper's streams are four times as wide, two thirds.

At width 64 the number of parameters is then at most 0.21 % below the paper's, at every depth and for every data set.
"""

import math

import torch
from torch import Tensor, nn

from petra_core.models.architecture import Block, architecture, check_stem
from petra_core.models.permutation import PixelUnshuffleStage
from petra_core.models.revnet import (
    IMAGE_CHANNELS,
    bottleneck_residual,
    revnet,
    split_stem,
)
from petra_core.models.streams import ConcatStreams
from petra_core.stages import HeadStage, ReversibleStage, Stage, merge

FACTOR = 2  # of every down-sampling, in height and in width


class AverageChannels(nn.Module):
    """Average groups of neighbouring channels: [B, C] -> [B, features]."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, value: Tensor) -> Tensor:
        return value.reshape(len(value), self.features, -1).mean(2)

    def extra_repr(self) -> str:
        return f"features={self.features}"


def _inner_channels(channels: int, parameters: int) -> int:
    """The largest n for which a bottleneck `channels` -> n -> n -> `channels` has at most that many parameters.

    They are 2·n·channels + 9·n² weights, and a bias and two BatchNorm parameters for each of 2·n + channels outputs.
    """
    half_b, c = channels + 3, 3 * channels - parameters  # of 9 n² + 2 half_b n + c <= 0
    return max(1, (math.isqrt(max(0, half_b**2 - 9 * c)) - half_b) // 9)


def invertible_revnet(depth: int, *, num_classes: int, stem: str = "cifar", width: int = 64) -> list[Stage]:
    """The stages of a RevNet of which only stem and head keep inputs.

    Args:
        depth: 18, 34 or 50: the layout, and the network whose number of parameters is met.
        num_classes: logits of the head, at least 2.
        stem: "cifar" and "imagenet32" are one: 3x3, stride 1, no pooling; "imagenet" is 7x7, stride 2, 2x2 max-pooling.
        width: channels of each stream in the first group of blocks; 64 in the paper.

    Returns:
        J stages: 10 for depth 18, 18 for 34 and 50. They take images [B, 3, H, W]; after the stem, height and width
        must be divisible by 8.

    Raises:
        ValueError: an unknown depth or stem, fewer than 2 classes, a width below 1.
        TypeError: width or num_classes is not an int.

    """
    layout = architecture("invertible RevNet", depth)
    with torch.device("meta"):
        published = revnet(depth, num_classes=num_classes, stem=stem, width=width)
    large = check_stem(stem) == "imagenet"
    stages: list[Stage] = [split_stem(IMAGE_CHANNELS, width, *((7, 2) if large else (3, 1)), pool=large)]
    channels = width
    for block, place in zip(layout.blocks(width), published[1:-1], strict=True):
        before: list[Stage] = []
        if block.stride > 1:
            before.append(PixelUnshuffleStage(FACTOR))
            channels *= FACTOR**2
        inner = _inner_channels(channels, sum(parameter.numel() for parameter in place.parameters()))
        stages.append(merge([*before, ReversibleStage(bottleneck_residual(Block(channels, inner, channels, 1)))]))
    features = 2 * layout.out_channels(width)
    pooled = nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), AverageChannels(features))
    stages.append(HeadStage(nn.Sequential(*pooled, nn.Linear(features, num_classes))))
    return stages
