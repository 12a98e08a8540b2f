"""What the reversible transformers share: residual functions, and how blocks of two functions become stages.

A pre-LayerNorm transformer block has two skips, around attention and around the MLP. Its reversible form (Mangalam et
al. 2022, "Reversible Vision Transformers") lays them over two streams:

    y1 = x1 + F(x2)        F: LayerNorm and attention
    y2 = x2 + G(y1)        G: LayerNorm and MLP; neither has a skip inside

The obvious translation is a second kind of stage, with two functions, an inverse and a backward of its own. It is not
needed. With the streams in the order (x, x~) = (x2, x1) the block is two stages of one function in a row, whose swaps
cancel:

    ReversibleStage(F)     (x2, x1) -> (x1 + F(x2), x2) = (y1, x2)
    ReversibleStage(G)     (y1, x2) -> (x2 + G(y1), y1) = (y2, y1)

So `merge([ReversibleStage(F), ReversibleStage(G)])` is the block, as one stage of the pipeline, and the two unmerged
are the same network with twice as many stages and twice the staleness. Merged or not, the engine goes through the
functions one at a time, so a backward never holds the graphs of both.

Attention is `scaled_dot_product_attention`, whose fused kernels save less for the backward than the plain form does.
Which kernel runs depends on the device; `petra_core.prediction.memory` predicts the one that PyTorch chooses there.

Linear layers start from Xavier's uniform distribution with biases 0 (Dosovitskiy et al. 2021), embeddings from a normal
distribution of deviation 0.02. LayerNorm has PyTorch's eps.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.arguments import check_int, check_number
from petra_core.models.streams import ConcatStreams
from petra_core.sizes import MLP_RATIO, patch_grid
from petra_core.stages import HeadStage, ReversibleStage, Stage, merge

__all__ = [
    "DropPath",
    "Mlp",
    "PatchEmbedding",
    "PositionEmbedding",
    "SelfAttention",
    "block_functions",
    "drop_rates",
    "initialise",
    "join_heads",
    "pooled_head",
    "pre_norm",
    "reversible_blocks",
    "split_heads",
]

EMBEDDING_DEVIATION = 0.02


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, ..., C] -> [B, heads, T, C / heads], with T the product of the middle dimensions."""
    x = x.flatten(1, -2)
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, heads, T, C / heads] -> [B, T, C]."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head attention of every token to every token, or to itself and those before it.

    Args:
        width: channels.
        heads: divide the width.
        dropout: of attention probabilities.
        causal: whether tokens do not see those after them.

    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))  # [B, heads, T, C / heads]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        result: Tensor = self.project(join_heads(mixed))
        return result


class Mlp(nn.Sequential):
    """Two linear layers with a GELU between: [..., C] -> [..., C], ratio · C features inside."""

    def __init__(self, width: int, ratio: int = MLP_RATIO) -> None:
        hidden = ratio * width
        layers = {"expand": nn.Linear(width, hidden), "gelu": nn.GELU(), "contract": nn.Linear(hidden, width)}
        super().__init__(OrderedDict(layers))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): drop a residual function for some samples, scale it up for the others.

    The samples are drawn from torch's generator of the input's device, which the engine winds back for a
    reconstruction, so that it drops the same ones.

    Args:
        rate: probability that a sample is dropped.

    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = check_number("the rate of stochastic depth", rate, below=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, ...]; unchanged in evaluation."""
        if not self.training:
            return x
        kept = x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - self.rate)  # [B, 1, ...]
        return x * kept / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def pre_norm(width: int, function: nn.Module, *, dropout: float = 0.0, drop_path: float = 0.0) -> nn.Sequential:
    """F or G of a block: LayerNorm, the function, dropout and stochastic depth (these two only at a rate above 0)."""
    layers = OrderedDict[str, nn.Module](norm=nn.LayerNorm(width), function=function)
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    if drop_path:
        layers["drop_path"] = DropPath(drop_path)
    return nn.Sequential(layers)


def block_functions(
    width: int, attention: nn.Module, *, dropout: float = 0.0, drop_path: float = 0.0, mlp_ratio: int = MLP_RATIO
) -> tuple[nn.Sequential, nn.Sequential]:
    """(F, G) of a block: the attention given, and an MLP."""
    return (
        pre_norm(width, attention, dropout=dropout, drop_path=drop_path),
        pre_norm(width, Mlp(width, mlp_ratio), dropout=dropout, drop_path=drop_path),
    )


def drop_rates(last: float, depth: int) -> list[float]:
    """Rates of stochastic depth of `depth` blocks: linear from 0 at the first to `last` at the last.

    Raises:
        ValueError: `last` is not in [0, 1).
        TypeError: it is not a number.

    """
    last = check_number("drop_path", last, below=1.0)
    return [last * index / max(1, depth - 1) for index in range(depth)]


def reversible_blocks(blocks: Iterable[tuple[nn.Module, nn.Module]], *, split: bool) -> list[Stage]:
    """Blocks (F, G) as stages: one for each block, or with `split` one for each function."""
    stages: list[Stage] = []
    for functions in blocks:
        pair = [ReversibleStage(function) for function in functions]
        stages += pair if split else [merge(pair)]
    return stages


class PatchEmbedding(nn.Module):
    """Patches of an image as tokens, by a convolution: [B, in_channels, S, S] -> [B, S / patch, S / patch, C].

    Args:
        in_channels: of the images.
        width: C.
        image_size: S.
        patch: distance between patches, pixels.
        overlap: pixels by which a patch's field reaches into its neighbours on the left and above.

    """

    def __init__(self, in_channels: int, width: int, image_size: int, patch: int, overlap: int = 0) -> None:
        super().__init__()
        patch_grid(image_size, patch)
        self.shape = (check_int("in_channels", in_channels, 1), image_size, image_size)
        self.convolution = nn.Conv2d(in_channels, width, patch + overlap, stride=patch, padding=overlap)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] != self.shape:
            raise ValueError(
                f"the network was built for images [batch, {', '.join(map(str, self.shape))}], got "
                f"{list(images.shape)}; give the constructor their image_size and in_channels"
            )
        tokens: Tensor = self.convolution(images)  # [B, C, H, W]
        return tokens.permute(0, 2, 3, 1)  # [B, H, W, C]


class PositionEmbedding(nn.Module):
    """Add a learned vector at each place: [B, *places, C] -> the same shape."""

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
    """Two streams [B, ..., C] -> logits [B, num_classes]: concatenation, LayerNorm, mean over tokens, linear."""
    check_int("num_classes", num_classes, 2)
    layers = [ConcatStreams(-1), nn.LayerNorm(2 * width), TokenMean(), nn.Linear(2 * width, num_classes)]
    return HeadStage(nn.Sequential(*layers))


def initialise(stages: Sequence[Stage]) -> list[Stage]:
    """Give linear layers and embeddings their initial values (see above); returns the stages."""
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=EMBEDDING_DEVIATION)
    return list(stages)
