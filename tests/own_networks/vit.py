"""A ViT with a class token and positions. Its unchanged blocks are buffered stages, with optional dropout."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Stage

WIDTH = 8
loss = F.cross_entropy


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, image: Tensor) -> Tensor:
        x = self.proj(image).flatten(2).mT
        return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed


def block(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout, F.gelu, batch_first=True, norm_first=True)


class Top(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, 0])


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch_embed, self.blocks = Patches(), nn.Sequential(*(block(dropout) for _ in range(3)))
        self.head = Top(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.patch_embed(image)))


def stages(model: Model) -> list[Stage]:
    return [BufferedStage(model.patch_embed), *map(BufferedStage, model.blocks), HeadStage(model.head)]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 8, 8), torch.randint(3, (4,))
