"""RevSwin: a two-stream Swin transformer (Liu et al. 2021), reversible within each resolution.

    patch embedding     [B, 3, S, S] -> [B, H, W, C] and LayerNorm, the same in both streams
    blocks              y1 = x1 + F(x2),  y2 = x2 + G(y1): F is LayerNorm and attention within windows, shifted by half
                        a window in every other block; G is LayerNorm and MLP
    patch merging       between two groups of blocks, buffered: streams concatenated, 2 x 2 neighbours concatenated,
                        LayerNorm, linear from 8C to 2C channels, the same in both streams
    head                streams concatenated, LayerNorm, mean over tokens, linear

Blocks have exactly the parameters of Swin's. Patch merging and head read two streams and have more: each merging from C
channels has 8 C² + 8C additional weights. Sizes tiny to large are those of Swin. Huge and giant have the depths and
widths of Swin V2 (Liu et al. 2022) with Swin's blocks. `micro` is meant for images of about ten pixels on a CPU.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.models.streams import ConcatStreams, DuplicateStreams
from petra_core.stages import BufferedStage, Stage
from reproduce.models import transformer
from reproduce.models.sizes import REVSWIN, HierarchicalSize, find_size, patch_grid, window_grids


class WindowAttention(nn.Module):
    """Multi-head attention within windows of a grid of tokens, with a learned bias for each relative position.

    Args:
        width: Channels C.
        heads: Number of heads; divides `width`.
        grid: Height and width of the grid in tokens.
        window: Height and width of a window in tokens; divides `grid`.
        shift: Rows and columns by which to shift the windows. The grid is rolled, so a window at the edge contains
            tokens from opposite edges; a mask prevents attention between them.

    """

    relative_position: Tensor
    separate: Tensor | None

    def __init__(self, width: int, heads: int, grid: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))  # one row per relative position
        nn.init.trunc_normal_(self.bias, std=transformer.EMBEDDING_DEVIATION)
        # Not in the state dict, since both can be computed from the sizes.
        self.register_buffer("relative_position", _relative_position(window), persistent=False)
        self.register_buffer("separate", _separate(grid, window, shift) if shift else None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, H, W, C] to [B, H, W, C]."""
        b, h, w, c = x.shape
        rows, columns, size = h // self.window, w // self.window, self.window
        if self.shift:
            x = x.roll((-self.shift, -self.shift), dims=(1, 2))
        # Windows and heads share a dimension, so that the mask broadcasts over samples without a copy.
        qkv = self.qkv(x).view(b, rows, size, columns, size, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(5, 0, 1, 3, 6, 2, 4, 7).reshape(3, b, rows * columns * self.heads, size * size, -1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask(rows * columns))
        out = out.view(b, rows, columns, self.heads, size, size, c // self.heads).permute(0, 1, 4, 2, 5, 3, 6)
        result: Tensor = self.project(out.reshape(b, h, w, c))
        return result.roll((self.shift, self.shift), dims=(1, 2)) if self.shift else result

    def _mask(self, windows: int) -> Tensor:
        """Return the mask to add to the attention logits: [1, windows * heads, tokens, tokens]."""
        tokens = self.window**2
        bias = self.bias[self.relative_position].view(tokens, tokens, self.heads).permute(2, 0, 1)  # [heads, T, T]
        mask = bias.expand(windows, -1, -1, -1)
        if self.separate is not None:
            mask = mask.masked_fill(self.separate[:, None], float("-inf"))
        return mask.reshape(1, windows * self.heads, tokens, tokens)


def _relative_position(window: int) -> Tensor:
    """Return the row of the bias for each pair of tokens of a window: [window⁴]."""
    row, column = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    rows, columns = ((place.flatten()[:, None] - place.flatten()) + window - 1 for place in (row, column))
    return (rows * (2 * window - 1) + columns).flatten()


def _separate(grid: int, window: int, shift: int) -> Tensor:
    """Return which tokens of a window come from opposite edges of the grid: [windows, tokens, tokens], bool."""
    place = torch.arange(grid)
    # Three zones of rows (or columns): before the last window, in it, and rolled in from the opposite edge.
    zone = (place >= grid - window).long() + (place >= grid - shift).long()
    zones = zone[:, None] * 3 + zone  # [grid, grid]
    count = grid // window
    window_zones = zones.view(count, window, count, window).transpose(1, 2).reshape(count**2, window**2)
    return window_zones[:, :, None] != window_zones[:, None]


class PatchMerging(nn.Module):
    """Transition from two streams [B, H, W, C] to two equal streams [B, H/2, W/2, 2C]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fuse = ConcatStreams(-1)
        self.norm = nn.LayerNorm(8 * width)
        self.reduce = nn.Linear(8 * width, 2 * width, bias=False)
        self.duplicate = DuplicateStreams()

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = self.fuse(streams)  # [B, H, W, 2C]
        b, h, w, c = x.shape
        x = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h // 2, w // 2, 4 * c)
        duplicated: tuple[Tensor, Tensor] = self.duplicate(self.reduce(self.norm(x)))
        return duplicated


def revswin(
    size: str | HierarchicalSize,
    *,
    num_classes: int,
    image_size: int = 224,
    patch: int = 4,
    window: int = 7,
) -> list[Stage]:
    """Build a RevSwin.

    Args:
        size: Name of a size in `reproduce.models.sizes.REVSWIN`, or a `HierarchicalSize`.
        num_classes: Number of logits, at least 2.
        image_size: Height and width of the images in pixels.
        patch: Height and width of a patch in pixels; divides `image_size`.
        window: Height and width of a window in tokens; divides every larger grid.

    Returns:
        The J = 2 + blocks + groups - 1 stages (17 for tiny, 29 for small), for images [B, 3, image_size, image_size].

    Raises:
        ValueError: If the size is unknown, `patch` or `window` does not divide the image or the grid, or a number is
            out of range.
        TypeError: If a number has the wrong type.

    """
    size = find_size("RevSwin", REVSWIN, size)
    grids = window_grids(patch_grid(image_size, patch), window, len(size.depths))
    width, heads = size.width, size.heads
    stem = [transformer.PatchEmbedding(width, image_size, patch), nn.LayerNorm(width), DuplicateStreams()]
    stages: list[Stage] = [BufferedStage(nn.Sequential(*stem))]
    for group, (depth, (grid, group_window)) in enumerate(zip(size.depths, grids, strict=True)):
        if group > 0:
            stages.append(BufferedStage(PatchMerging(width)))
            width, heads = 2 * width, 2 * heads
        blocks = []
        for block in range(depth):
            shift = group_window // 2 if block % 2 and group_window < grid else 0  # a single window is not shifted
            attention = WindowAttention(width, heads, grid, group_window, shift)
            blocks.append(transformer.block_functions(width, attention))
        stages += transformer.reversible_blocks(blocks)
    return transformer.initialise([*stages, transformer.pooled_head(width, num_classes)])
