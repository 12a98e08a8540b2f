"""ResNet-18, -34 and -50 as stages: one torchvision block per stage, none of them reversible.

These are the paper's baselines. The blocks are torchvision's classes, so architecture and number of parameters are
torchvision's (11,689,512, 21,797,672 and 25,557,032 for ImageNet). Two things differ from torchvision's networks. The
initialisation is PyTorch's default instead of Kaiming with fan-out, as in `petra_core.models.revnet`, so that the two
families differ only in their architecture. Small images get the usual 3x3 stem of stride 1 without pooling.
"""

from torch import nn

from petra_core.models.architecture import BlockShape, residual_blocks
from petra_core.models.pointwise import PointwiseConv2d
from petra_core.models.revnet import IMAGE_CHANNELS
from petra_core.stages import BufferedStage, HeadStage, Stage


def _stem(stem: str, width: int) -> nn.Sequential:
    norm_relu = [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    if stem == "imagenet":
        conv = nn.Conv2d(IMAGE_CHANNELS, width, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(conv, *norm_relu, nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(nn.Conv2d(IMAGE_CHANNELS, width, 3, padding=1, bias=False), *norm_relu)


def _block(block: BlockShape) -> nn.Module:
    # Imported here because importing torchvision takes longer than importing torch, and only a ResNet needs it.
    from torchvision.models.resnet import BasicBlock, Bottleneck

    downsample = None
    if not block.keeps_shape:
        conv = PointwiseConv2d(block.in_channels, block.out_channels, block.stride, bias=False)
        downsample = nn.Sequential(conv, nn.BatchNorm2d(block.out_channels))
    kind: type[nn.Module] = Bottleneck if block.bottleneck else BasicBlock
    return kind(block.in_channels, block.inner_channels, block.stride, downsample)


def resnet(depth: int, *, num_classes: int, stem: str = "cifar", width: int = 64) -> list[Stage]:
    """Build a ResNet.

    Args:
        depth: 18 or 34 (basic blocks), or 50 (bottlenecks).
        num_classes: Number of logits, at least 2.
        stem: "cifar" and "imagenet32" are the same: 3x3, stride 1, no pooling. "imagenet" is torchvision's stem.
        width: Channels in the first group of blocks; 64 in the paper and in torchvision.

    Returns:
        The J stages, 10 for depth 18 and 18 for depths 34 and 50. They take images [B, 3, H, W].

    Raises:
        ValueError: If `depth` or `stem` is unknown, `num_classes` is below 2 or `width` is below 1.
        TypeError: If `width` or `num_classes` is not an int.

    """
    blocks = residual_blocks("ResNet", depth, num_classes=num_classes, stem=stem, width=width)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(blocks[-1].out_channels, num_classes))
    return [BufferedStage(_stem(stem, width)), *(BufferedStage(_block(block)) for block in blocks), HeadStage(head)]
