"""A plain vision transformer and a small GPT, as they are or with the coupling that can be inverted to the bit.

    stem        embedding and the first block
    blocks      x + h(x),  h(x) = y + MLP(LayerNorm(x + y)),  y = attention(LayerNorm(x))
    head        LayerNorm, for images the mean over tokens, linear

Plain or with BDIA (`petra_core.models.bdia`) weights have the same names, so that each loads the other's. Attention of
the GPT is causal: a token sees itself and those before it, and the target of a place is the token after it.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.arguments import check_int, check_number
from petra_core.models.bdia import BITS, BdiaStage, EulerStep, FirstStep, Quantise
from petra_core.models.transformer import (
    Mlp,
    PatchEmbedding,
    PositionEmbedding,
    SelfAttention,
    TokenMean,
    initialise,
    pre_norm,
)
from petra_core.sizes import REVVIT as SIZES
from petra_core.sizes import TransformerSize, find_size, patch_grid
from petra_core.stages import BufferedStage, HeadStage, Stage

__all__ = ["gpt", "vit"]


class Increment(nn.Module):
    """h of a pre-LayerNorm block: attention y of x and the MLP of x + y, summed; [B, T, C] to the same."""

    def __init__(self, size: TransformerSize, attention: nn.Module, dropout: float) -> None:
        super().__init__()
        self.attention = pre_norm(size.width, attention, dropout=dropout)
        self.mlp = pre_norm(size.width, Mlp(size.width, size.mlp_ratio), dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x)
        result: Tensor = y + self.mlp(x + y)
        return result


class Latest(nn.Module):
    """Takes the first of two streams, the output of the last block; a lone tensor is that already."""

    def forward(self, value: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return value if isinstance(value, Tensor) else value[0]


class Tokens(nn.Module):
    """Token numbers [B, T] -> embeddings with learned positions [B, T, C]."""

    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.length = check_int("length", length, 1)
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = PositionEmbedding((length,), width)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1:] != (self.length,):
            raise ValueError(f"the network reads [batch, {self.length}] tokens, got {list(tokens.shape)}")
        result: Tensor = self.position(self.embedding(tokens))
        return result


def vit(
    size: str | TransformerSize,
    *,
    num_classes: int,
    image_size: int = 224,
    patch: int = 16,
    in_channels: int = 3,
    dropout: float = 0.0,
    bdia: bool = False,
    bits: int | None = BITS,
) -> list[Stage]:
    """The stages of a ViT with a mean over tokens in place of a class token.

    Args:
        size: a name in `petra_core.sizes.REVVIT`, or any `TransformerSize`; a depth of at least 1.
        num_classes: logits of the head, at least 2.
        image_size: height and width of the images, pixels.
        patch: height and width of a patch, pixels; divides image_size.
        in_channels: of the images.
        dropout: rate after the embedding, of attention probabilities, after attention and MLP.
        bdia: whether blocks after the first can be inverted to the bit.
        bits: of BDIA's fixed point; None: its float form.

    Returns:
        J = depth + 1 stages. They take images [B, in_channels, image_size, image_size].

    Raises:
        ValueError: an unknown size, images that cannot be divided into patches, a number out of its range.
        TypeError: a number of another type.

    """
    size = find_size("ViT", SIZES, size)
    grid = patch_grid(image_size, patch)
    embedding = nn.Sequential(
        PatchEmbedding(in_channels, size.width, image_size, patch),
        PositionEmbedding((grid, grid), size.width),
        nn.Flatten(1, 2),  # [B, T, C]
    )
    head = [nn.LayerNorm(size.width), TokenMean(), nn.Linear(size.width, check_int("num_classes", num_classes, 2))]
    attention = partial(SelfAttention, size.width, size.heads, dropout)
    return _stages(size, embedding, attention, HeadStage(nn.Sequential(Latest(), *head)), dropout, bits, bdia=bdia)


def gpt(
    size: str | TransformerSize,
    *,
    vocabulary: int,
    length: int,
    dropout: float = 0.0,
    bdia: bool = False,
    bits: int | None = BITS,
) -> list[Stage]:
    """The stages of a small GPT: tokens [B, length] to logits of the token after each, [B, length, vocabulary].

    Args:
        size: a name in `petra_core.sizes.REVVIT`, or any `TransformerSize`; a depth of at least 1.
        vocabulary: number of tokens, at least 2.
        length: tokens of a sequence.
        dropout: as of `vit`.
        bdia: as of `vit`.
        bits: as of `vit`.

    Returns:
        J = depth + 1 stages. They take token numbers [B, length] and targets [B, length] (`next_token_loss`).

    Raises:
        ValueError: an unknown size, a number out of its range.
        TypeError: a number of another type.

    """
    size = find_size("GPT", SIZES, size)
    attention = partial(SelfAttention, size.width, size.heads, dropout, causal=True)
    layers = [nn.LayerNorm(size.width), nn.Linear(size.width, check_int("vocabulary", vocabulary, 2))]
    head = HeadStage(nn.Sequential(Latest(), *layers), loss=next_token_loss)
    return _stages(size, Tokens(vocabulary, size.width, length), attention, head, dropout, bits, bdia=bdia)


def next_token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of logits [B, T, V] and targets [B, T], the tokens after each place."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def _stages(
    size: TransformerSize,
    embedding: nn.Module,
    attention: Callable[[], nn.Module],
    head: HeadStage,
    dropout: float,
    bits: int | None,
    *,
    bdia: bool,
) -> list[Stage]:
    check_number("dropout", dropout, below=1.0)
    first, *others = (Increment(size, attention(), dropout) for _ in range(size.depth))
    begin = [Quantise(bits), FirstStep(first, bits)] if bdia else [nn.Identity(), EulerStep(first)]
    dropped: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()
    stages: list[Stage] = [BufferedStage(nn.Sequential(embedding, dropped, *begin))]
    stages += [BdiaStage(h, bits) if bdia else BufferedStage(EulerStep(h)) for h in others]
    return initialise([*stages, head])
