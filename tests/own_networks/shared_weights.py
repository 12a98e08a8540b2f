"""A transformer with shared layers, like ALBERT: every stage applies one block twice, so its weights are tied."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import ConcatStreams, SplitStreams

WIDTH = 4
loss = F.cross_entropy


class Twice(nn.Module):
    """F(x) = g(g(x)). The two layers of g share one matrix; the second uses its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        self.back.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.back(torch.tanh(self.layer(self.norm(x))))
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, 2 * WIDTH), SplitStreams())
        self.blocks = nn.ModuleList(Twice() for _ in range(3))
        self.head = nn.Sequential(ConcatStreams(), nn.Linear(2 * WIDTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.stem(x)
        for f in self.blocks:
            first, second = second + f(first), first
        return self.head((first, second))


def stages(model: Model) -> list[Stage]:
    return [BufferedStage(model.stem), *map(ReversibleStage, model.blocks), HeadStage(model.head)]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3), torch.randint(3, (4,))
