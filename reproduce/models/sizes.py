"""Sizes of the reversible transformers, and checks of image and window sizes.

This module is separate from the networks so that command lines and experiment plans can use it without importing torch.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from petra_core.errors import check_int

S = TypeVar("S")
MLP_RATIO = 4  # the usual ratio of an MLP's hidden features to its input features


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless `width` channels can be divided evenly among `heads` heads."""
    check_int("heads", heads, 1)
    if width % heads:
        raise ValueError(
            f"{width} channels cannot be divided among {heads} heads (remainder {width % heads}); "
            f"the width must be a multiple of the number of heads, such as {width - width % heads + heads}"
        )


@dataclass(frozen=True)
class TransformerSize:
    """Size of a transformer of constant width.

    Attributes:
        width: Channels of each stream, the "embedding dimension".
        depth: Number of blocks. Each consists of an attention and an MLP.
        heads: Number of attention heads.
        mlp_ratio: Ratio of an MLP's hidden features to `width`.

    """

    width: int
    depth: int
    heads: int
    mlp_ratio: int = MLP_RATIO

    def __post_init__(self) -> None:
        check_int("width", self.width, 1)
        check_int("depth", self.depth, 1)
        check_int("mlp_ratio", self.mlp_ratio, 1)
        check_heads(self.width, self.heads)


@dataclass(frozen=True)
class HierarchicalSize:
    """Size of a hierarchical transformer, whose resolution halves and whose width doubles from group to group.

    Attributes:
        width: Channels of each stream in the first group of blocks.
        depths: Number of blocks in each group.
        heads: Number of attention heads in the first group. It doubles with the width.

    """

    width: int
    depths: tuple[int, ...]
    heads: int

    def __post_init__(self) -> None:
        check_int("width", self.width, 1)
        object.__setattr__(self, "depths", tuple(self.depths))
        if not self.depths:
            raise ValueError("depths must have an entry for at least one group, got none; give it as (2, 2, 6, 2)")
        for depth in self.depths:
            check_int("each of depths", depth, 1)
        check_heads(self.width, self.heads)


REVVIT = {
    "micro": TransformerSize(width=48, depth=4, heads=3),
    "six": TransformerSize(width=512, depth=6, heads=8, mlp_ratio=1),  # BDIA experiments, from a secondary source
    "tiny": TransformerSize(width=192, depth=12, heads=3),
    "small": TransformerSize(width=384, depth=12, heads=6),
    "base": TransformerSize(width=768, depth=12, heads=12),
    "large": TransformerSize(width=1024, depth=24, heads=16),
}

REVSWIN = {
    "micro": HierarchicalSize(width=24, depths=(2, 2), heads=2),
    "tiny": HierarchicalSize(width=96, depths=(2, 2, 6, 2), heads=3),
    "small": HierarchicalSize(width=96, depths=(2, 2, 18, 2), heads=3),
    "base": HierarchicalSize(width=128, depths=(2, 2, 18, 2), heads=4),
    "large": HierarchicalSize(width=192, depths=(2, 2, 18, 2), heads=6),
    "huge": HierarchicalSize(width=352, depths=(2, 2, 18, 2), heads=11),
    "giant": HierarchicalSize(width=512, depths=(2, 2, 42, 4), heads=16),
}

REVMVIT = {
    "micro": HierarchicalSize(width=24, depths=(1, 2), heads=1),
    "tiny": HierarchicalSize(width=96, depths=(1, 2, 5, 2), heads=1),
    "base": HierarchicalSize(width=96, depths=(1, 2, 11, 2), heads=1),
}

REVROBERTA = {
    "micro": TransformerSize(width=48, depth=4, heads=3),
    "base": TransformerSize(width=768, depth=12, heads=12),
    "large": TransformerSize(width=1024, depth=24, heads=16),
}


def find_size(family: str, sizes: Mapping[str, S], size: str | S) -> S:
    """Return the size with the given name, or `size` itself if it is not a name.

    Args:
        family: Name of the network family, for error messages.
        sizes: The named sizes of the family.
        size: A name in `sizes`, or a size object.

    Raises:
        ValueError: If the name is unknown. The message suggests the closest names.
        TypeError: If `size` is neither a name nor a size of the family's class.

    """
    kind = type(next(iter(sizes.values())))
    if isinstance(size, kind):
        return size
    if not isinstance(size, str):
        raise TypeError(f"the size of a {family} must be a name or a {kind.__name__}, got {size!r}")
    if size not in sizes:
        near = difflib.get_close_matches(size.lower(), sizes, n=2) or list(sizes)
        raise ValueError(
            f"there is no {family} of size {size!r}; did you mean {' or '.join(map(repr, near))}? "
            f"Give other sizes as reproduce.models.sizes.{kind.__name__}(...)"
        )
    return sizes[size]


def patch_grid(image_size: int, patch: int) -> int:
    """Return the number of patches in a row of a square image.

    Raises:
        ValueError: If `patch` does not divide `image_size`.
        TypeError: If a number is not an int.

    """
    check_int("image_size", image_size, 1)
    check_int("patch", patch, 1)
    if image_size % patch:
        sizes = [size for size in range(1, image_size + 1) if image_size % size == 0]
        raise ValueError(
            f"images of {image_size} pixels cannot be divided into patches of {patch} "
            f"(remainder {image_size % patch}); choose a patch of {', '.join(map(str, sizes))}, or other images"
        )
    return image_size // patch


def window_grids(grid: int, window: int, groups: int) -> list[tuple[int, int]]:
    """Return, for each group, the number of tokens in a row of the grid and in a row of a window.

    Args:
        grid: Tokens in a row of the first group's grid. The grid is halved from group to group.
        window: Tokens in a row of a window; limited to the grid.
        groups: Number of groups.

    Raises:
        ValueError: If a grid cannot be divided into windows, or cannot be halved.
        TypeError: If `window` is not an int.

    """
    check_int("window", window, 1)
    pairs = []
    for group in range(groups):
        size = min(window, grid)
        if grid % size or (group < groups - 1 and grid % 2):
            needed = f"windows of {size}" + (", and halved for the next group" if group < groups - 1 else "")
            raise ValueError(
                f"the {grid} x {grid} tokens of group {group} cannot be divided into {needed}; "
                f"choose image_size / patch as a multiple of window * {2 ** (groups - 1)}, or another window"
            )
        pairs.append((grid, size))
        grid //= 2
    return pairs
