"""RevViT: a two-stream vision transformer (Mangalam et al. 2022, "Reversible Vision Transformers").

    patch embedding     [B, 3, S, S] -> tokens [B, T, C] with a learned position embedding, the same in both streams
    blocks              y1 = x1 + attention(LayerNorm(x2)),  y2 = x2 + MLP(LayerNorm(y1))
    head                streams concatenated, LayerNorm of 2C channels, mean over tokens (no class token), linear

A stream has the width of a ViT, and a block has the parameters of a ViT block. Only the head reads twice the channels.
Sizes are those of ViT and DeiT: Rev-ViT-S has 22M and Rev-ViT-B 87M parameters for ImageNet, as published. `micro` is
meant for images of about ten pixels on a CPU.
"""

from torch import nn

from petra_core.errors import check_number
from petra_core.models.streams import DuplicateStreams
from petra_core.stages import BufferedStage, Stage
from reproduce.models import transformer
from reproduce.models.sizes import REVVIT, TransformerSize, find_size, patch_grid


def flat_block(size: TransformerSize, *, dropout: float) -> tuple[nn.Module, nn.Module]:
    """Return the functions (F, G) of a block on tokens [B, T, C]."""
    attention = transformer.SelfAttention(size.width, size.heads, dropout)
    return transformer.block_functions(size.width, attention, dropout=dropout, mlp_ratio=size.mlp_ratio)


def revvit(
    size: str | TransformerSize,
    *,
    num_classes: int,
    image_size: int = 224,
    patch: int = 16,
    dropout: float = 0.0,
) -> list[Stage]:
    """Build a RevViT.

    Args:
        size: Name of a size in `reproduce.models.sizes.REVVIT`, or a `TransformerSize`.
        num_classes: Number of logits, at least 2.
        image_size: Height and width of the images in pixels.
        patch: Height and width of a patch in pixels; divides `image_size`.
        dropout: Dropout rate after the embedding, of attention probabilities and after every residual function.

    Returns:
        The J = depth + 2 stages, for images [B, 3, image_size, image_size].

    Raises:
        ValueError: If the size is unknown, `patch` does not divide `image_size` or a number is out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("RevViT", REVVIT, size)
    check_number("dropout", dropout, below=1.0)
    grid = patch_grid(image_size, patch)
    stem = nn.Sequential(
        transformer.PatchEmbedding(size.width, image_size, patch),
        transformer.PositionEmbedding((grid, grid), size.width),
        nn.Flatten(1, 2),  # [B, T, C]
        *([nn.Dropout(dropout)] if dropout else []),
        DuplicateStreams(),
    )
    blocks = (flat_block(size, dropout=dropout) for _ in range(size.depth))
    return transformer.initialise(
        [
            BufferedStage(stem),
            *transformer.reversible_blocks(blocks),
            transformer.pooled_head(size.width, num_classes),
        ]
    )
