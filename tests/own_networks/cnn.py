"""A custom RevNet of seven stages, with GroupNorm and squeeze-and-excitation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import ConcatStreams, DuplicateStreams

loss = F.cross_entropy


class Squeeze(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(channels, 2), nn.GELU(), nn.Linear(2, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[..., None, None]


def block(channels: int) -> nn.Module:
    conv = nn.Conv2d(channels, channels, 3, padding=1)
    return nn.Sequential(nn.GroupNorm(2, channels), nn.GELU(), conv, Squeeze(channels))


class Down(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 2, stride=2)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.conv(streams[0]), self.conv(streams[1])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.first, self.second = (nn.ModuleList(block(c) for _ in range(2)) for c in (4, 8))
        self.down = Down(4)
        self.head = nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3))

    def forward(self, image: Tensor) -> Tensor:
        x = x_tilde = self.stem(image)
        for f in self.first:
            x, x_tilde = x_tilde + f(x), x
        x, x_tilde = self.down((x, x_tilde))
        for f in self.second:
            x, x_tilde = x_tilde + f(x), x
        return self.head((x, x_tilde))


def stages(model: Model) -> list[Stage]:
    blocks = [*map(ReversibleStage, model.first), BufferedStage(model.down), *map(ReversibleStage, model.second)]
    return [BufferedStage(nn.Sequential(model.stem, DuplicateStreams())), *blocks, HeadStage(model.head)]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 6, 6), torch.randint(3, (4,))
