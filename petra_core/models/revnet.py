"""RevNet-18, -34 and -50 as stages (arXiv 2406.02052, section 4.1).

A RevNet is a ResNet with twice the channels, split into two streams of the ResNet's full width. A block that keeps the
shape is an invertible coupling, (x, x~) -> (x~ + F(x), x). A block that changes the shape is not invertible, and its
inputs are buffered:

    basic        h = ReLU(BN(conv3x3 s(x))),   (x, x~) -> (ReLU(BN(conv3x3(h))) + BN(conv1x1 s(x~)),  h)
    bottleneck                                 (x, x~) -> (F_s(x)               + BN(conv1x1 s(x~)),  BN(conv1x1 s(x)))

As in the paper, every convolution has a bias and every residual function ends in a ReLU. The numbers of parameters are
then the paper's (12.2M, 22.3M and 30.4M for ImageNet). Weights have PyTorch's default initialisation, as in
`petra_core.models.resnet`, so that RevNet and ResNet differ only in their architecture.

Stem, blocks and head are one stage each: J = 10 for depth 18, J = 18 for depths 34 and 50.
"""

from collections import OrderedDict

from torch import Tensor, nn

from petra_core.models.architecture import BlockShape, residual_blocks
from petra_core.models.pointwise import PointwiseConv2d
from petra_core.models.streams import ConcatStreams, SplitStreams
from petra_core.stages import BufferedStage, HeadStage, ReversibleStage, Stage

IMAGE_CHANNELS = 3


def _conv_bn(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a padded convolution with bias, and its BatchNorm."""
    if kernel == 1:
        return [PointwiseConv2d(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels)]
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2)
    return [conv, nn.BatchNorm2d(out_channels)]


def _conv_bn_relu(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    # The ReLU may work in place: BatchNorm's backward reads its input, not its output.
    return [*_conv_bn(in_channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]


def _residual(*groups: list[nn.Module]) -> nn.Sequential:
    """Chain groups of (conv, bn, relu) under the names conv1, bn1, relu1, conv2, ... in the state dict."""
    named = OrderedDict(
        (f"{name}{number}", layer)
        for number, group in enumerate(groups, start=1)
        for name, layer in zip(("conv", "bn", "relu"), group, strict=True)
    )
    return nn.Sequential(named)


def basic_residual(channels: int) -> nn.Sequential:
    """Return F of a basic block: two 3x3 convolutions, which keep the shape [B, C, H, W]."""
    return _residual(_conv_bn_relu(channels, channels, 3), _conv_bn_relu(channels, channels, 3))


def bottleneck_residual(block: BlockShape) -> nn.Sequential:
    """Return F of a bottleneck block: 1x1, 3x3 (with the stride, as in torchvision) and 1x1 convolutions."""
    return _residual(
        _conv_bn_relu(block.in_channels, block.inner_channels, 1),
        _conv_bn_relu(block.inner_channels, block.inner_channels, 3, block.stride),
        _conv_bn_relu(block.inner_channels, block.out_channels, 1),
    )


class BasicTransition(nn.Module):
    """Basic block that changes the shape (see above)."""

    def __init__(self, block: BlockShape) -> None:
        super().__init__()
        self.first = nn.Sequential(*_conv_bn_relu(block.in_channels, block.out_channels, 3, block.stride))
        self.second = nn.Sequential(*_conv_bn_relu(block.out_channels, block.out_channels, 3))
        self.shortcut = nn.Sequential(*_conv_bn(block.in_channels, block.out_channels, 1, block.stride))

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Map two streams [B, C, H, W] to two streams [B, C', H/s, W/s]."""
        x, x_tilde = streams
        h = self.first(x)
        return self.second(h) + self.shortcut(x_tilde), h


class BottleneckTransition(nn.Module):
    """Bottleneck block that changes the shape (see above)."""

    def __init__(self, block: BlockShape) -> None:
        super().__init__()
        self.residual = bottleneck_residual(block)
        self.shortcut = nn.Sequential(*_conv_bn(block.in_channels, block.out_channels, 1, block.stride))
        self.projection = nn.Sequential(*_conv_bn(block.in_channels, block.out_channels, 1, block.stride))

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Map two streams [B, C, H, W] to two streams [B, C', H/s, W/s]."""
        x, x_tilde = streams
        return self.residual(x) + self.shortcut(x_tilde), self.projection(x)


def split_stem(in_channels: int, width: int, kernel: int, stride: int, *, pool: bool) -> BufferedStage:
    """Return the stem: images [B, in_channels, H, W] -> two streams [B, width, H', W']."""
    layers = _conv_bn_relu(in_channels, 2 * width, kernel, stride)
    return BufferedStage(nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []), SplitStreams()))


def streams_head(width: int, num_classes: int) -> HeadStage:
    """Return the head: two streams [B, width, H, W] -> logits [B, num_classes] of their global averages."""
    means = (ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return HeadStage(nn.Sequential(*means, nn.Linear(2 * width, num_classes)))


def revnet(depth: int, *, num_classes: int, stem: str = "cifar", width: int = 64) -> list[Stage]:
    """Build a RevNet.

    Args:
        depth: 18 or 34 (basic blocks), or 50 (bottlenecks).
        num_classes: Number of logits, at least 2.
        stem: "cifar" and "imagenet32" are the same: 3x3, stride 1, no pooling. "imagenet" is 7x7, stride 2, followed by
            2x2 max-pooling.
        width: Channels of each stream in the first group of blocks; 64 in the paper.

    Returns:
        The J stages, 10 for depth 18 and 18 for depths 34 and 50. They take images [B, 3, H, W].

    Raises:
        ValueError: If `depth` or `stem` is unknown, `num_classes` is below 2 or `width` is below 1.
        TypeError: If `width` or `num_classes` is not an int.

    """
    blocks = residual_blocks("RevNet", depth, num_classes=num_classes, stem=stem, width=width)
    large = stem == "imagenet"
    stages: list[Stage] = [split_stem(IMAGE_CHANNELS, width, *((7, 2) if large else (3, 1)), pool=large)]
    for block in blocks:
        if block.keeps_shape:
            residual = bottleneck_residual(block) if block.bottleneck else basic_residual(block.out_channels)
            stages.append(ReversibleStage(residual))
        else:
            transition = BottleneckTransition if block.bottleneck else BasicTransition
            stages.append(BufferedStage(transition(block)))
    stages.append(streams_head(blocks[-1].out_channels, num_classes))
    return stages
