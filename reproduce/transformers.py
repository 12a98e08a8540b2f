"""Transformers by the words of a cell: model, stem and width.

    model    family and size: revvit_micro … revvit_large, revswin_micro … revswin_giant, revmvit_micro … revmvit_base
    stem     patch<P>: patches of P x P pixels
    width    channels of each stream, in the first group of blocks; the number of heads is the size's

A stage is one block of two functions. RevSwin's windows have 7 tokens in a row as published where that divides the grid
of patches, else the largest number below 7 that does.

Without dropout and stochastic depth: a cell has no setting for them.

This module exports MODELS, build, check, default_patch, default_width, title.
"""

import dataclasses
import re
from collections.abc import Callable

from petra_core import models
from petra_core.models import revmvit, revswin, revvit
from petra_core.models.revmvit import SIZES as REVMVIT
from petra_core.models.revswin import SIZES as REVSWIN
from petra_core.models.revswin import window_grids
from petra_core.models.revvit import SIZES as REVVIT
from petra_core.models.transformer import patch_grid
from petra_core.stages import Stage

__all__ = ["MODELS", "build", "check", "default_patch", "default_width", "title"]

Size = models.TransformerSize | models.HierarchicalSize

FAMILIES: dict[str, Callable[..., list[Stage]]] = {"revvit": revvit, "revswin": revswin, "revmvit": revmvit}

TITLES = {"revvit": "RevViT", "revswin": "RevSwin", "revmvit": "RevMViT"}
#: The published size of every model by its name.
MODELS: dict[str, Size] = {
    f"{family}_{name}": size
    for family, sizes in (("revvit", REVVIT), ("revswin", REVSWIN), ("revmvit", REVMVIT))
    for name, size in sizes.items()
}
WINDOW = 7


def build(model: str, stem: str, width: int, image_size: int, num_classes: int) -> list[Stage]:
    """The stages. Raises ValueError for settings that `check` refuses."""
    check(model, stem, width, image_size)
    family, patch = model.partition("_")[0], _patch(stem)
    windows = {"window": _window(image_size // patch)} if family == "revswin" else {}
    size = dataclasses.replace(MODELS[model], width=width)
    return FAMILIES[family](size, num_classes=num_classes, image_size=image_size, patch=patch, **windows)


def check(model: str, stem: str, width: int, image_size: int) -> None:
    """Raise ValueError if there is no such network for these images; the message says what to change."""
    size, patch = MODELS[model], _patch(stem)
    try:
        dataclasses.replace(size, width=width)
    except ValueError as error:
        raise ValueError(f"width of {model} (published: {size.width}): {error}") from None
    grid = patch_grid(image_size, patch)
    if isinstance(size, models.HierarchicalSize) and model.startswith("revswin"):
        window_grids(grid, _window(grid), len(size.depths))


def default_patch(model: str, image_size: int) -> str:
    """The stem for images of this size: 16 (RevViT) or 4 pixels as published, less for small images."""
    scale = 1 if model.startswith("revvit") else 2 if image_size < 128 else 4
    return f"patch{(16 if image_size >= 128 else 4 if image_size >= 32 else 2) // scale}"


def default_width(model: str) -> int:
    """The published width."""
    return MODELS[model].width


def title(model: str) -> str:
    """As tables call it: RevViT-Tiny."""
    family, _, size = model.partition("_")
    return f"{TITLES[family]}-{size.capitalize()}"


def _patch(stem: str) -> int:
    found = re.fullmatch(r"patch([1-9]\d*)", stem)
    if not found:
        raise ValueError(
            f"the stem of a transformer is patch<P> for patches of P x P pixels, such as patch4; got {stem!r}"
        )
    return int(found[1])


def _window(grid: int) -> int:
    return max(size for size in range(1, min(WINDOW, grid) + 1) if grid % size == 0)
