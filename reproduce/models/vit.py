"""Build a plain vision transformer and a small GPT, each optionally with bitwise invertible blocks (BDIA).

    stem        embedding and the first block
    blocks      x + h(x),  h(x) = y + MLP(LayerNorm(x + y)),  y = attention(LayerNorm(x))
    head        LayerNorm, mean over tokens (images only), linear

Weights have the same names with and without BDIA (`reproduce.models.bdia`), so the state dicts are interchangeable.
The GPT has causal attention: a token attends to itself and to earlier tokens, and its target is the next token.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from petra_core.errors import check_int, check_number
from petra_core.stages import BufferedStage, HeadStage, Stage
from reproduce.models import transformer
from reproduce.models.bdia import BITS, BdiaStage, EulerStep, FirstStep, Quantise
from reproduce.models.revroberta import TokenEmbedding, masked_cross_entropy
from reproduce.models.sizes import REVVIT, TransformerSize, find_size, patch_grid


class Increment(nn.Module):
    """Increment h of a pre-LayerNorm block: y + MLP(x + y) with y = attention(x), [B, T, C] -> [B, T, C]."""

    def __init__(self, size: TransformerSize, attention: nn.Module, dropout: float) -> None:
        super().__init__()
        self.attention = transformer.pre_norm(size.width, attention, dropout=dropout)
        self.mlp = transformer.pre_norm(size.width, transformer.Mlp(size.width, size.mlp_ratio), dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x)
        result: Tensor = y + self.mlp(x + y)
        return result


class Latest(nn.Module):
    """Layer that returns the output of the last block: the first of two streams, or the tensor itself."""

    def forward(self, value: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        return value if isinstance(value, Tensor) else value[0]


def vit(
    size: str | TransformerSize,
    *,
    num_classes: int,
    image_size: int = 224,
    patch: int = 16,
    dropout: float = 0.0,
    bdia: bool = False,
    bits: int | None = BITS,
) -> list[Stage]:
    """Build a ViT with a mean over tokens instead of a class token.

    Args:
        size: Name of a size in `reproduce.models.sizes.REVVIT`, or a `TransformerSize` with a depth of at least 1.
        num_classes: Number of logits, at least 2.
        image_size: Height and width of the images in pixels.
        patch: Height and width of a patch in pixels; divides `image_size`.
        dropout: Dropout rate after the embedding, of attention probabilities, and after attention and MLP.
        bdia: Whether the blocks after the first are bitwise invertible.
        bits: Fractional bits of BDIA's fixed-point representation. None selects its float form.

    Returns:
        The J = depth + 1 stages, for images [B, 3, image_size, image_size].

    Raises:
        ValueError: If the size is unknown, `patch` does not divide `image_size` or a number is out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("ViT", REVVIT, size)
    grid = patch_grid(image_size, patch)
    embedding = nn.Sequential(
        transformer.PatchEmbedding(size.width, image_size, patch),
        transformer.PositionEmbedding((grid, grid), size.width),
        nn.Flatten(1, 2),  # [B, T, C]
    )
    head = [
        nn.LayerNorm(size.width),
        transformer.TokenMean(),
        nn.Linear(size.width, check_int("num_classes", num_classes, 2)),
    ]
    attention = partial(transformer.SelfAttention, size.width, size.heads, dropout)
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
    """Build a small GPT, which maps tokens [B, length] to logits of the next token, [B, length, vocabulary].

    Args:
        size: Name of a size in `reproduce.models.sizes.REVVIT`, or a `TransformerSize` with a depth of at least 1.
        vocabulary: Number of tokens in the vocabulary, at least 2.
        length: Maximum number of tokens in a sequence.
        dropout: See `vit`.
        bdia: See `vit`.
        bits: See `vit`.

    Returns:
        The J = depth + 1 stages. They take token ids [B, length] and their targets [B, length], the next tokens.

    Raises:
        ValueError: If the size is unknown or a number is out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("GPT", REVVIT, size)
    embedding = TokenEmbedding(vocabulary, size.width, length)
    attention = partial(transformer.SelfAttention, size.width, size.heads, dropout, causal=True)
    layers = [nn.LayerNorm(size.width), nn.Linear(size.width, vocabulary)]
    head = HeadStage(nn.Sequential(Latest(), *layers), loss=masked_cross_entropy)
    return _stages(size, embedding, attention, head, dropout, bits, bdia=bdia)


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
    return transformer.initialise([*stages, head])
