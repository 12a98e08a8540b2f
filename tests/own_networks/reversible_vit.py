"""A reversible ViT: the residual branches of a plain block as F and G, with dropout and stochastic depth."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import DuplicateStreams
from tests.own_networks.vit import WIDTH, Patches, batch

__all__ = ["Model", "batch", "loss", "stages"]
loss = F.cross_entropy


class DropPath(nn.Module):
    """Stochastic depth. The mask is drawn from torch's generator, so the backward replays it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(len(x), *(1,) * (x.dim() - 1)) >= self.rate
        return x * keep / (1 - self.rate) if self.training and self.rate else x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(h := self.norm(x), h, h, need_weights=False)[0]


class Top(nn.Sequential):
    def forward(self, streams: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(((streams[0] + streams[1]) / 2)[:, 0])


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        mlp = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, WIDTH)
        functions = Attention(), nn.Sequential(*mlp), Attention()
        self.patch_embed, self.head = Patches(), Top(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))
        self.blocks = nn.ModuleList(nn.Sequential(f, DropPath(dropout)) for f in functions)

    def forward(self, image: Tensor) -> Tensor:
        x = x_tilde = self.patch_embed(image)
        for f in self.blocks:
            x, x_tilde = x_tilde + f(x), x
        return self.head((x, x_tilde))


def stages(model: Model) -> list[Stage]:
    stem = BufferedStage(nn.Sequential(model.patch_embed, DuplicateStreams()))
    return [stem, *map(ReversibleStage, model.blocks), HeadStage(model.head)]
