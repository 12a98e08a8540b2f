"""A plain ConvNeXt: depthwise convolutions, LayerNorm over channels, LayerScale, two resolutions, buffered stages."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Stage

loss = F.cross_entropy


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [batch, channels, height, width]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Residual(nn.Sequential):
    """The residual branch of a block."""

    def __init__(self, channels: int) -> None:
        depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        wide = nn.Conv2d(channels, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, channels, 1)
        super().__init__(depthwise, ChannelNorm(channels), *wide)
        self.gamma = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * super().forward(x)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        down = nn.Sequential(ChannelNorm(4), nn.Conv2d(4, 8, 2, stride=2))
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), ChannelNorm(4))
        self.blocks = nn.Sequential(Block(4), Block(4), down, Block(8))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)))


def stages(model: Model) -> list[Stage]:
    return [BufferedStage(model.stem), *map(BufferedStage, model.blocks), HeadStage(model.head)]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 8, 8), torch.randint(3, (4,))
