"""A GPT-2. Its unchanged pre-norm blocks are buffered stages; the padding mask is one more stream."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Stage

WORDS, WIDTH, LENGTH, IGNORED = 7, 8, 6, -100


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.token(value[0]) + self.position.weight[: value[0].shape[1]], value[1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, mask = value
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        h = F.scaled_dot_product_attention(q, k, v, causal & mask[:, None, None]).transpose(1, 2)
        return (x := x + self.out(h.flatten(2))) + self.mlp(x), mask


class Top(nn.Linear):
    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(value[0])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.top = Embedding(), Top(WIDTH, WORDS)
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        return self.top(self.blocks(self.embedding(value)))


def stages(model: Model) -> list[Stage]:
    return [BufferedStage(model.embedding), *map(BufferedStage, model.blocks), HeadStage(model.top, loss)]


def loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def batch(length: int = LENGTH) -> tuple[tuple[Tensor, Tensor], Tensor]:
    tokens, mask = torch.randint(WORDS, (4, length)), torch.arange(length) <= torch.randint(1, length, (4, 1))
    return (tokens, mask), tokens.roll(-1, 1).masked_fill(~mask, IGNORED)
