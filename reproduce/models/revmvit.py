"""RevMViT: a two-stream multiscale vision transformer, reversible within each resolution (Mangalam et al. 2022).

    patch embedding     [B, 3, S, S] -> [B, H, W, C]; patches overlap; position embedding; the same in both streams
    blocks              y1 = x1 + F(x2),  y2 = x2 + G(y1): F is LayerNorm and attention to pooled keys and values, G is
                        LayerNorm and MLP
    stage transition    first block of each group after the first, buffered: concatenation of the streams (which doubles
                        the channels), a two-layer MLP that mixes them, then an MViT block whose queries are pooled to
                        half the resolution; the result is the same in both streams
    head                streams concatenated, LayerNorm, mean over tokens, linear

Pooling follows MViT (Fan et al. 2021): a depthwise 3x3 convolution, shared by all heads, and LayerNorm. The strides of
keys and values are 4, 2, 1, 1 in the four groups, so the first three groups have equal numbers of keys. The skip of a
transition is pooled with the weights that pool its queries.

`base` has the layout of Rev-MViT-B and 39.7M parameters for ImageNet (published: 39M). `tiny` has the depths of
MViTv2-T. `micro` is meant for images of about ten pixels on a CPU.
"""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.models.streams import ConcatStreams, DuplicateStreams
from petra_core.stages import BufferedStage, Stage
from reproduce.models import transformer
from reproduce.models.sizes import REVMVIT, HierarchicalSize, find_size, patch_grid

FIRST_STRIDE = 4  # stride of keys and values in the first group


class Pooling(nn.Module):
    """Pooling of a grid of tokens, for each head: [B, H, W, C] -> [B, H/stride, W/stride, C], rounded up.

    Args:
        width: Channels C.
        heads: Number of heads; divides `width`.
        stride: Stride in height and width.

    """

    def __init__(self, width: int, heads: int, stride: int) -> None:
        super().__init__()
        self.heads = heads
        channels = width // heads
        self.convolution = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, _ = x.shape
        x = x.view(b, h, w, self.heads, -1).permute(0, 3, 4, 1, 2).flatten(0, 1)  # [B heads, C / heads, H, W]
        x = self.convolution(x).unflatten(0, (b, self.heads)).permute(0, 3, 4, 1, 2)  # [B, H', W', heads, C / heads]
        result: Tensor = self.norm(x).flatten(3)
        return result


class PoolingAttention(nn.Module):
    """Multi-head attention from pooled queries to pooled keys and values.

    Args:
        width: Channels C.
        heads: Number of heads; divides `width`.
        key_stride: Stride of the pooling of keys and values.
        query_stride: Stride of the pooling of queries; 1 means no pooling.

    """

    def __init__(self, width: int, heads: int, key_stride: int, query_stride: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.pool_q = Pooling(width, heads, query_stride) if query_stride > 1 else nn.Identity()
        self.pool_k = Pooling(width, heads, key_stride)
        self.pool_v = Pooling(width, heads, key_stride)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, H, W, C] to [B, H', W', C], the grid of the pooled queries."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # [B, H, W, C] each
        q = self.pool_q(q)
        queries, keys, values = (transformer.split_heads(x, self.heads) for x in (q, self.pool_k(k), self.pool_v(v)))
        out = F.scaled_dot_product_attention(queries, keys, values)  # [B, heads, T, C / heads]
        result: Tensor = self.project(transformer.join_heads(out).view(q.shape))
        return result


class StageTransition(nn.Module):
    """Transition from two streams [B, H, W, C] to two equal streams [B, H/2, W/2, 2C], rounded up.

    Args:
        width: Channels C of each input stream.
        heads: Number of heads of the block; divides 2C.
        key_stride: Stride of the pooling of keys and values.

    """

    def __init__(self, width: int, heads: int, key_stride: int) -> None:
        super().__init__()
        wide = 2 * width
        lateral = {"expand": nn.Linear(wide, 2 * wide), "gelu": nn.GELU(), "contract": nn.Linear(2 * wide, wide)}
        self.fuse = ConcatStreams(-1)
        self.lateral = nn.Sequential(OrderedDict(norm=nn.LayerNorm(wide), **lateral))
        attention = PoolingAttention(wide, heads, key_stride, query_stride=2)
        self.attention, self.mlp = transformer.block_functions(wide, attention)
        self.duplicate = DuplicateStreams()

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = self.lateral(self.fuse(streams))  # [B, H, W, 2C]
        x = self.attention.get_submodule("function.pool_q")(x) + self.attention(x)  # [B, H/2, W/2, 2C]
        duplicated: tuple[Tensor, Tensor] = self.duplicate(x + self.mlp(x))
        return duplicated


def revmvit(
    size: str | HierarchicalSize,
    *,
    num_classes: int,
    image_size: int = 224,
    patch: int = 4,
) -> list[Stage]:
    """Build a RevMViT.

    Args:
        size: Name of a size in `reproduce.models.sizes.REVMVIT`, or a `HierarchicalSize`.
        num_classes: Number of logits, at least 2.
        image_size: Height and width of the images in pixels.
        patch: Distance between patches in pixels; divides `image_size`. Neighbouring patches overlap by patch - 1
            pixels.

    Returns:
        The J = 2 + blocks stages (18 for base), for images [B, 3, image_size, image_size].

    Raises:
        ValueError: If the size is unknown, `patch` does not divide `image_size` or a number is out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("RevMViT", REVMVIT, size)
    grid = patch_grid(image_size, patch)
    width, heads = size.width, size.heads
    stem = nn.Sequential(
        transformer.PatchEmbedding(width, image_size, patch, overlap=patch - 1),
        transformer.PositionEmbedding((grid, grid), width),
        DuplicateStreams(),
    )
    stages: list[Stage] = [BufferedStage(stem)]
    for group, depth in enumerate(size.depths):
        stride = max(1, FIRST_STRIDE >> group)
        if group > 0:
            heads *= 2
            stages.append(BufferedStage(StageTransition(width, heads, stride)))
            width *= 2
        blocks = [
            transformer.block_functions(width, PoolingAttention(width, heads, stride))
            for _ in range(depth - (group > 0))
        ]
        stages += transformer.reversible_blocks(blocks)
    return transformer.initialise([*stages, transformer.pooled_head(width, num_classes)])
