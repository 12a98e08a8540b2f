"""A reversible GPT. Attention and MLP are two couplings of one stage; the mask and the positions are context."""

import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage, merge
from tests.own_networks.gpt import WIDTH, WORDS, batch, loss

__all__ = ["Model", "batch", "loss", "stages"]


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(16, WIDTH))

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        h = self.embedding(value[0])
        return h, h, ~value[1], self.position[: h.shape[1]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True, bias=False)

    def forward(self, x: Tensor, padding: Tensor, position: Tensor) -> Tensor:
        h, causal = self.norm(x) + position, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(h, h, h, key_padding_mask=padding, attn_mask=causal, need_weights=False)[0]


class Mlp(nn.Sequential):
    def forward(self, x: Tensor, *_context: Tensor) -> Tensor:
        return super().forward(x)


class Top(nn.Linear):
    def forward(self, streams: tuple[Tensor, ...]) -> Tensor:
        return super().forward(torch.cat(streams[:2], -1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.top = Stem(), Top(2 * WIDTH, WORDS)
        self.attentions = nn.ModuleList(Attention() for _ in range(2))
        self.mlps = nn.ModuleList(Mlp(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2))

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        x, x_tilde, *context = self.stem(value)
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x_tilde = x_tilde + attention(x, *context)
            x = x + mlp(x_tilde)
        return self.top((x, x_tilde))


def stages(model: Model) -> list[Stage]:
    pairs = zip(model.attentions, model.mlps, strict=True)
    blocks = [merge([ReversibleStage(f, context=True) for f in pair]) for pair in pairs]
    return [BufferedStage(model.stem), *blocks, HeadStage(model.top, loss)]
