"""Sizes of the reversible transformers, those published and any other, and what follows from them without a network.

Whether a network of some size fits images of some size is arithmetic. It is apart from the networks themselves, so that
who only asks (a command line, the plan of a grid) does not wait for torch.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from petra_core.arguments import check_int

__all__ = [
    "REVMVIT",
    "REVROBERTA",
    "REVSWIN",
    "REVVIT",
    "HierarchicalSize",
    "TransformerSize",
    "find_size",
    "patch_grid",
    "window_grids",
]

S = TypeVar("S")
MLP_RATIO = 4  # the usual hidden features of an MLP for each of its input's


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless `width` channels can be shared out evenly to `heads` heads."""
    check_int("heads", heads, 1)
    if width % heads:
        raise ValueError(
            f"{width} channels cannot be shared out to {heads} heads (remainder {width % heads}); "
            f"the width must be a multiple of the number of heads, such as {width - width % heads + heads}"
        )


@dataclass(frozen=True)
class TransformerSize:
    """Size of a transformer of constant width.

    Attributes:
        width: channels of each stream, the "embedding dimension".
        depth: blocks; each is an attention and an MLP.
        heads: of every attention.
        mlp_ratio: hidden features of an MLP for each channel.

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
    """Size of a transformer whose resolution falls and whose width doubles from group to group of blocks.

    Attributes:
        width: channels of each stream in the first group.
        depths: blocks of each group.
        heads: of the first group; they double with the width.

    """

    width: int
    depths: tuple[int, ...]
    heads: int

    def __post_init__(self) -> None:
        check_int("width", self.width, 1)
        object.__setattr__(self, "depths", tuple(self.depths))
        if not self.depths:
            raise ValueError("depths must name the blocks of at least one group, got none")
        for depth in self.depths:
            check_int("each of depths", depth, 1)
        check_heads(self.width, self.heads)


REVVIT = {
    "micro": TransformerSize(width=48, depth=4, heads=3),
    "six": TransformerSize(width=512, depth=6, heads=8, mlp_ratio=1),  # of the experiments with BDIA (second-hand)
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
    """The size of that name, or `size` itself if it is one.

    Raises:
        ValueError: there is none of that name; the message names the nearest, or all.
        TypeError: it is neither a name nor a size of this family's class.

    """
    kind = type(next(iter(sizes.values())))
    if isinstance(size, kind):
        return size
    if not isinstance(size, str):
        raise TypeError(f"the size of a {family} must be a name or a models.{kind.__name__}, got {size!r}")
    if size not in sizes:
        near = difflib.get_close_matches(size.lower(), sizes, n=2) or list(sizes)
        raise ValueError(
            f"there is no {family} of size {size!r}; did you mean {' or '.join(map(repr, near))}? "
            f"Any other is a models.{kind.__name__}(...)"
        )
    return sizes[size]


def patch_grid(image_size: int, patch: int) -> int:
    """Patches in a row of a square image.

    Raises:
        ValueError: the image cannot be divided into patches.
        TypeError: a number that is not an int.

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
    """Tokens in a row of the grid and of a window, in each of `groups` groups; a window is at most the grid.

    Raises:
        ValueError: a grid cannot be divided into windows, or not be halved.
        TypeError: window is not an int.

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
