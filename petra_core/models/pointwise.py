"""Compute a strided 1x1 convolution as subsampling followed by a 1x1 convolution of stride 1.

The obvious form, `nn.Conv2d(..., 1, stride=2)`, is unsafe in narrow networks on a CPU. With channels-last float32
tensors and fewer channels than the kernel's block size (16 with AVX-512, 8 with AVX2), oneDNN's weight gradient writes
past its workspace (https://github.com/uxlfoundation/oneDNN/issues/6035, open with the oneDNN 3.13 of torch 2.15). This
gives wrong gradients or crashes the process later. Strided 1x1 convolutions are the only ones in this folder that are
affected; tests/petra_core/models/test_convolutions.py compares all kinds with float64.

With AVX-512 and channels-last images both forms are bitwise equal wherever the obvious one is correct.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class PointwiseConv2d(nn.Conv2d):
    """Replacement for `nn.Conv2d(in_channels, out_channels, 1, stride=stride)` that is safe at any width.

    The state dicts of the two are interchangeable.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        stride: Stride in height and width.
        bias: Whether to add a learned bias to each output channel.

    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 1, stride=stride, bias=bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name in nn.Conv2d
        """Map [B, C, H, W] to [B, C', H / stride, W / stride], rounded up."""
        down, right = self.stride
        return F.conv2d(input[:, :, ::down, ::right], self.weight, self.bias)
