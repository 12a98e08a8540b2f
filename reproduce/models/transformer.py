"""Define the residual functions and blocks that the reversible transformers share.

A pre-LayerNorm transformer block has two skip connections, around attention and around the MLP. Its reversible form
(Mangalam et al. 2022, "Reversible Vision Transformers") spreads them over two streams:

    y1 = x1 + F(x2)        F: LayerNorm and attention
    y2 = x2 + G(y1)        G: LayerNorm and MLP; neither contains a skip connection

The obvious translation is a second kind of stage with two functions, a separate inverse and a separate backward. It is
not needed. With the streams in the order (x, x~) = (x2, x1), the block is two consecutive stages of one function each,
whose swaps cancel:

    ReversibleStage(F)     (x2, x1) -> (x1 + F(x2), x2) = (y1, x2)
    ReversibleStage(G)     (y1, x2) -> (x2 + G(y1), y1) = (y2, y1)

So `merge([ReversibleStage(F), ReversibleStage(G)])` is the block as one stage of the pipeline. Without `merge` the
network is the same, with twice the number of stages and twice the staleness. In both cases the engine processes one
function at a time, so a backward never holds the graphs of both.

Attention is `scaled_dot_product_attention`, whose fused kernels save less for the backward than the unfused form. The
kernel depends on the device; `petra_core.prediction.memory` predicts which one PyTorch chooses.

Linear layers are initialised Xavier uniform with biases 0 (Dosovitskiy et al. 2021), embeddings from a normal
distribution with standard deviation 0.02. LayerNorm has PyTorch's default eps.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.errors import check_int
from petra_core.models.revnet import IMAGE_CHANNELS
from petra_core.models.streams import ConcatStreams
from petra_core.stages import HeadStage, ReversibleStage, Stage, merge
from reproduce.models.sizes import MLP_RATIO, patch_grid

EMBEDDING_DEVIATION = 0.02


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Map [B, ..., C] to [B, heads, T, C / heads], where T is the product of the middle dimensions."""
    x = x.flatten(1, -2)
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Map [B, heads, T, C / heads] to [B, T, C]."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        width: Channels C.
        heads: Number of heads; divides `width`.
        dropout: Dropout rate of attention probabilities.
        causal: Whether a token attends only to itself and to earlier tokens.

    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, C] to [B, T, C]."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))  # [B, heads, T, C / heads]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        result: Tensor = self.project(join_heads(mixed))
        return result


class Mlp(nn.Sequential):
    """Two linear layers with a GELU between them: [..., C] -> [..., C], with ratio · C hidden features."""

    def __init__(self, width: int, ratio: int = MLP_RATIO) -> None:
        hidden = ratio * width
        layers = {"expand": nn.Linear(width, hidden), "gelu": nn.GELU(), "contract": nn.Linear(hidden, width)}
        super().__init__(OrderedDict(layers))


def pre_norm(width: int, function: nn.Module, *, dropout: float = 0.0) -> nn.Sequential:
    """Return F or G of a block: LayerNorm, the function, and dropout if its rate exceeds 0."""
    layers = OrderedDict[str, nn.Module](norm=nn.LayerNorm(width), function=function)
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    return nn.Sequential(layers)


def block_functions(
    width: int, attention: nn.Module, *, dropout: float = 0.0, mlp_ratio: int = MLP_RATIO
) -> tuple[nn.Sequential, nn.Sequential]:
    """Return the functions (F, G) of a block: the given attention, and an MLP."""
    return pre_norm(width, attention, dropout=dropout), pre_norm(width, Mlp(width, mlp_ratio), dropout=dropout)


def reversible_blocks(blocks: Iterable[tuple[nn.Module, nn.Module]]) -> list[Stage]:
    """Return a stage for each block (F, G)."""
    return [merge([ReversibleStage(f), ReversibleStage(g)]) for f, g in blocks]


class PatchEmbedding(nn.Module):
    """Embedding of image patches by a convolution: [B, 3, S, S] -> [B, S / patch, S / patch, C].

    Args:
        width: Channels C of a token.
        image_size: Height and width S of the images in pixels.
        patch: Distance between patches in pixels.
        overlap: Pixels by which a patch extends into its neighbours on the left and above.

    """

    def __init__(self, width: int, image_size: int, patch: int, overlap: int = 0) -> None:
        super().__init__()
        patch_grid(image_size, patch)
        self.shape = (IMAGE_CHANNELS, image_size, image_size)
        self.convolution = nn.Conv2d(IMAGE_CHANNELS, width, patch + overlap, stride=patch, padding=overlap)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] != self.shape:
            raise ValueError(
                f"the network was built for images [batch, {', '.join(map(str, self.shape))}], got "
                f"{list(images.shape)}; build it with the image_size of these images"
            )
        tokens: Tensor = self.convolution(images)  # [B, C, H, W]
        return tokens.permute(0, 2, 3, 1)  # [B, H, W, C]


class PositionEmbedding(nn.Module):
    """Layer that adds a learned vector at each position of [B, *places, C]."""

    def __init__(self, places: Sequence[int], width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*places, width))
        nn.init.normal_(self.weight, std=EMBEDDING_DEVIATION)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class TokenMean(nn.Module):
    """Mean over all tokens: [B, ..., C] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1)


def pooled_head(width: int, num_classes: int) -> HeadStage:
    """Return the head: two streams [B, ..., C] -> logits [B, num_classes].

    It concatenates the streams and applies LayerNorm, a mean over tokens and a linear layer.
    """
    check_int("num_classes", num_classes, 2)
    layers = [ConcatStreams(-1), nn.LayerNorm(2 * width), TokenMean(), nn.Linear(2 * width, num_classes)]
    return HeadStage(nn.Sequential(*layers))


def initialise(stages: Sequence[Stage]) -> list[Stage]:
    """Initialise linear layers and embeddings as described above, and return the stages."""
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=EMBEDDING_DEVIATION)
    return list(stages)
