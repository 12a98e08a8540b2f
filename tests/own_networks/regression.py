"""Regression of two targets, with a loss that has trainable weights and returns metrics."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import ConcatStreams, DuplicateStreams

WIDTH = 4


class Uncertainty(nn.Module):
    """A loss with learned weights of the tasks (Kendall et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        errors = torch.stack([F.mse_loss(o, t) for o, t in zip(output, target, strict=True)])
        value = ((-self.log_variance).exp() * errors + self.log_variance).sum()
        return value, {"position": errors[0], "angle": errors[1]}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.join, self.position, self.angle = ConcatStreams(), nn.Linear(2 * WIDTH, 2), nn.Linear(2 * WIDTH, 1)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = self.join(streams)
        return self.position(h), self.angle(h)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.heads, self.loss = Heads(), Uncertainty()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x_tilde = self.stem(x)
        for f in self.blocks:
            x, x_tilde = x_tilde + f(x), x
        return self.heads((x, x_tilde))


def stages(model: Model) -> list[Stage]:
    stem = BufferedStage(nn.Sequential(model.stem, DuplicateStreams()))
    return [stem, *map(ReversibleStage, model.blocks), HeadStage(model.heads, model.loss)]


def batch() -> tuple[Tensor, tuple[Tensor, Tensor]]:
    x = torch.randn(4, 3)
    return x, (x[:, :2].sin(), x[:, 2:].square())
