"""A mixture of experts whose load-balancing loss is a scalar stream that accumulates from block to block."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from petra_core import BufferedStage, HeadStage, Stage

WIDTH, EXPERTS, Value = 4, 3, tuple[Tensor, Tensor]


class Stem(nn.Linear):
    def forward(self, x: Tensor) -> Value:
        return super().forward(x), x.new_zeros(())


class Experts(nn.Module):
    """Layers with weight normalization that a router mixes. One parameter is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.unused = nn.Linear(WIDTH, EXPERTS), nn.Parameter(torch.zeros(WIDTH))
        self.experts = nn.ModuleList(weight_norm(nn.Linear(WIDTH, WIDTH)) for _ in range(EXPERTS))

    def forward(self, value: Value) -> Value:
        x, share = value[0], self.router(value[0]).softmax(-1)
        mixed = sum(share[:, [e]] * torch.tanh(expert(x)) for e, expert in enumerate(self.experts))
        return x + mixed, value[1] + EXPERTS * share.mean(0).square().sum()


class Top(nn.Linear):
    def forward(self, value: Value) -> Value:
        return super().forward(value[0]), value[1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.top = Stem(3, WIDTH), Top(WIDTH, 3)
        self.blocks = nn.Sequential(*(Experts() for _ in range(3)))

    def forward(self, x: Tensor) -> Value:
        return self.top(self.blocks(self.stem(x)))


def stages(model: Model) -> list[Stage]:
    return [BufferedStage(model.stem), *map(BufferedStage, model.blocks), HeadStage(model.top, loss)]


def loss(output: Value, target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target) + 0.01 * output[1]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3), torch.randint(3, (4,))
