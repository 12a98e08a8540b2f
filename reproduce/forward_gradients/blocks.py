"""ResNet-18 in 8 or 16 blocks for training with local losses, and the auxiliary networks that compute these losses.

The networks follow the released code of "Can Forward Gradient Match Backpropagation?" (Fournier et al. 2023,
arXiv 2306.06968):

    8 blocks    torchvision's BasicBlocks; the first includes the 3x3 stem, the last a BatchNorm and the head
    16 blocks   no skip connections; a block is a 3x3 convolution, BatchNorm and ReLU, the first block has two of each

Both have four groups, with 1, 2, 4 and 8 times the width. The first block of groups two to four has a stride of 2. All
weights are initialised Kaiming uniform; the biases of convolutions and linear layers are 0.01.
"""

import difflib
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from petra_core.errors import check_int
from petra_core.models.resnet import resnet
from petra_core.models.revnet import IMAGE_CHANNELS
from petra_core.stages import BufferedStage, HeadStage, Stage

BLOCKS = (8, 16)
#: Hidden channels of auxiliary networks for blocks of width 64, by kind and number of blocks; "linear" has none.
AUXILIARIES = {"cnn": {8: 32, 16: 16}, "mlp": {8: 1024, 16: 512}, "linear": {8: 1, 16: 1}}
WIDTH = 64  # the block width for which AUXILIARIES holds
QUARTERS = 4  # number of places to which images are pooled before the last linear layers (2x2)


def local_resnet(blocks: int, *, num_classes: int, width: int = WIDTH) -> list[Stage]:
    """Build a ResNet-18 with one stage per block.

    Args:
        blocks: Number of blocks, 8 or 16.
        num_classes: Number of logits, at least 2.
        width: Channels of the first group.

    Returns:
        The `blocks` stages, for images [B, 3, H, W].

    Raises:
        ValueError: If `blocks` is not 8 or 16, `num_classes` is below 2 or `width` is below 1.
        TypeError: If an argument is not an int.

    """
    _check_blocks(blocks)
    check_int("num_classes", num_classes, 2)
    check_int("width", width, 1)
    last = 8 * width
    head = [nn.BatchNorm2d(last), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, num_classes)]
    modules: list[nn.Module]
    if blocks == 8:
        stem, first, *middle, top, _ = (stage.function for stage in resnet(18, num_classes=num_classes, width=width))
        modules = [nn.Sequential(stem, first), *middle, nn.Sequential(top, *head)]
    else:
        channels = [width, *(_channels(block, blocks, width) for block in range(blocks))]
        strides = [2 if block in (4, 8, 12) else 1 for block in range(blocks)]
        plain = [_plain(*shape) for shape in zip(channels, channels[1:], strides, strict=False)]
        first, top = nn.Sequential(_plain(IMAGE_CHANNELS, width, 1), plain[0]), nn.Sequential(plain[-1], *head)
        modules = [first, *plain[1:-1], top]
    stages: list[Stage] = [*map(BufferedStage, modules[:-1]), HeadStage(modules[-1])]
    for stage in stages:
        initialise(stage)
    return stages


def auxiliary(kind: str, blocks: int, *, num_classes: int, width: int = WIDTH) -> Callable[[int], nn.Module]:
    """Return a function that builds the auxiliary network of a block.

    Args:
        kind: "cnn" (a 1x1 convolution and three 3x3 convolutions of stride 2), "mlp" (three hidden layers after pooling
            to 2x2) or "linear" (BatchNorm, pooling and one linear layer).
        blocks: Number of blocks of the network, 8 or 16.
        num_classes: Number of logits, at least 2.
        width: Width of the network, as in `local_resnet`. The number of hidden channels scales with it: at width 64
            and 8 or 16 blocks it is the paper's, 32 or 16 for "cnn" and 1024 or 512 for "mlp".

    Returns:
        A function from the index of a block to a new network, which maps [B, C, H, W] to [B, num_classes].

    Raises:
        ValueError: If `kind` or `blocks` is unknown, or a number is too small.
        TypeError: If a number is not an int.

    """
    if kind not in AUXILIARIES:
        near = difflib.get_close_matches(str(kind).lower(), AUXILIARIES, n=1) or list(AUXILIARIES)
        raise ValueError(f"there is no auxiliary network {kind!r}; did you mean {' or '.join(map(repr, near))}?")
    _check_blocks(blocks)
    check_int("num_classes", num_classes, 2)
    check_int("width", width, 1)
    hidden = max(1, AUXILIARIES[kind][blocks] * width // WIDTH)

    def network(block: int) -> nn.Module:
        channels = _channels(block, blocks, width)
        made = {"cnn": _cnn, "mlp": _mlp, "linear": _linear}[kind](channels, hidden, num_classes)
        return initialise(made)

    return network


def initialise(module: nn.Module) -> nn.Module:
    """Initialise all convolutions and linear layers: Kaiming uniform weights, biases 0.01. Return the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.01)
    return module


def _check_blocks(blocks: int) -> None:
    if blocks not in BLOCKS:
        raise ValueError(f"blocks must be 8 or 16, got {blocks!r}")


def _channels(block: int, blocks: int, width: int) -> int:
    """Return the number of output channels of a block."""
    return width << (4 * block // blocks)


def _plain(channels: int, out_channels: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


class _Pool(nn.Module):
    """Average over the quarters of each image: [B, C, H, W] -> [B, 4 C].

    This equals `nn.AdaptiveAvgPool2d(2)`, whose backward is not deterministic on CUDA. If the height or width is odd,
    the quarters overlap.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = ((slice((size + 1) // 2), slice(size // 2, size)) for size in x.shape[2:])
        return torch.stack([x[:, :, r, c].mean((2, 3)) for r in rows for c in columns], -1).flatten(1)


def _cnn(channels: int, hidden: int, num_classes: int) -> nn.Module:
    compression = nn.Conv2d(channels, hidden, 1, bias=False)
    layers = [module for _ in range(3) for module in _plain(hidden, hidden, 2)]
    first = [compression, nn.BatchNorm2d(hidden), nn.ReLU(inplace=True)]
    return nn.Sequential(*first, *layers, _Pool(), nn.Linear(QUARTERS * hidden, num_classes))


def _mlp(channels: int, hidden: int, num_classes: int) -> nn.Module:
    sizes = [QUARTERS * channels, hidden, hidden, hidden]
    layers = [
        module
        for before, after in itertools.pairwise(sizes)
        for module in (nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True))
    ]
    return nn.Sequential(_Pool(), *layers, nn.Linear(hidden, num_classes))


def _linear(channels: int, hidden: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels), _Pool(), nn.Linear(QUARTERS * channels, num_classes))
