"""A U-Net with two long skips, which pass through the reversible middle as context."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage

loss = F.mse_loss


class Down(nn.Conv2d):
    """Down-sampling by two. The input becomes one more stream, in front of the earlier skips."""

    def forward(self, value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *skips = (value,) if isinstance(value, Tensor) else value
        return torch.tanh(super().forward(x)), x, *skips


class Double(Down):
    """Down-sampling to two equal streams. The skips after them are the context of the reversible middle."""

    def forward(self, value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (streams := super().forward(value))[0], *streams


class Middle(nn.Sequential):
    def forward(self, x: Tensor, *_skips: Tensor) -> Tensor:
        return super().forward(x)


class Up(nn.ConvTranspose2d):
    """Up-sampling by two, plus the first skip. Takes the mean of the two streams that come from the middle."""

    def forward(self, value: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, skip, *skips = value if len(value) == 2 else ((value[0] + value[1]) / 2, *value[2:])
        return super().forward(x) + skip, *skips


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Down(1, 4, 2, stride=2), Double(4, 6, 2, stride=2)])
        self.middle = nn.ModuleList(Middle(nn.Conv2d(6, 6, 3, padding=1), nn.Tanh()) for _ in range(3))
        self.up = nn.ModuleList([Up(6, 4, 2, stride=2), Up(4, 1, 2, stride=2)])

    def forward(self, image: Tensor) -> Tensor:
        x, x_tilde, *skips = self.down[1](self.down[0](image))
        for f in self.middle:
            x, x_tilde = x_tilde + f(x), x
        return self.up[1](self.up[0]((x, x_tilde, *skips)))[0]


def stages(model: Model) -> list[Stage]:
    middle = [ReversibleStage(f, context=True) for f in model.middle]
    return [*map(BufferedStage, model.down), *middle, BufferedStage(model.up[0]), HeadStage(model.up[1], loss)]


def batch() -> tuple[Tensor, Tensor]:
    return (clean := torch.randn(4, 1, 8, 8).cumsum(-1)) + torch.randn(4, 1, 8, 8), clean
