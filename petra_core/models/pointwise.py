"""A 1x1 convolution with a stride, written as what it is: every s-th pixel, and then a convolution of stride 1.

The obvious form, `nn.Conv2d(..., 1, stride=2)`, cannot be trusted in narrow networks on a CPU. With channels-last
float32 and fewer channels than a block of the kernel has (16 with AVX-512, 8 with AVX2), oneDNN's gradient of the
weights writes past its workspace (https://github.com/uxlfoundation/oneDNN/issues/6035, open with the oneDNN 3.13 of
torch 2.15): wrong gradients, or a process that dies somewhere later. It is the only kind of convolution in this folder
that is concerned; tests/petra_core/models/test_convolutions.py holds all of them against float64.

With AVX-512 and channels-last images both forms give the same bits wherever the obvious one is right.
"""

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PointwiseConv2d"]


class PointwiseConv2d(nn.Conv2d):
    """`nn.Conv2d(in_channels, out_channels, 1, stride=stride)`, safe at any width; its weights load into that one.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        stride: in both directions.
        bias: whether a learned number is added to each channel.

    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 1, stride=stride, bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # nn.Conv2d calls it that
        """[B, C, H, W] -> [B, C', H / stride, W / stride], rounded up."""
        down, right = self.stride
        return F.conv2d(input[:, :, ::down, ::right], self.weight, self.bias)
