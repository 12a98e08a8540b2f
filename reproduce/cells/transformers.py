"""Build transformers from the settings of a cell: model, stem and width.

    model    family and size: vit_micro … vit_large, revvit_micro … revvit_large, revswin_micro … revswin_giant,
             revmvit_micro … revmvit_base, revroberta_micro … revroberta_large; vit_micro2, 12, 24, 48 by number of
             blocks, also for revvit and revroberta
    stem     patch<P>: patches of P x P pixels; for RevRoBERTa, which reads text, `bytes`: a token is a byte
    width    channels of each stream in the first group of blocks; the size determines the number of heads

The blocks x + h(x) of a plain ViT can have the coupling BDIA; the other families are reversible by their two streams.

A stage is one block of two functions. RevSwin's windows have 7 tokens per row, as published, if that divides the grid
of patches, and else the largest number below 7 that does.

There is no dropout and no stochastic depth: a cell has no setting for them.
"""

import dataclasses
import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reproduce.models import sizes

if TYPE_CHECKING:  # torch is slow to import, and names and sizes do not need it
    from petra_core.stages import Stage

Size = sizes.TransformerSize | sizes.HierarchicalSize

OWN = "own"  # the model's coupling
COUPLINGS = (OWN, "bdia", "bdia_float")  # BDIA, bitwise exact, or in floating-point numbers without a quantiser
#: Title and named sizes of each family. The function that builds it has its name, and so has the module.
FAMILIES: dict[str, tuple[str, Mapping[str, Size]]] = {
    "vit": ("ViT", sizes.REVVIT),
    "revvit": ("RevViT", sizes.REVVIT),
    "revswin": ("RevSwin", sizes.REVSWIN),
    "revmvit": ("RevMViT", sizes.REVMVIT),
    "revroberta": ("RevRoBERTa", sizes.REVROBERTA),
}
DEPTHS = (2, 12, 24, 48)  # blocks of networks with the width of micro
#: Sizes of all models by name: the published ones, and those of other depths.
MODELS = {f"{family}_{name}": size for family, (_, named) in FAMILIES.items() for name, size in named.items()}
MODELS |= {
    f"{family}_micro{depth}": dataclasses.replace(micro, depth=depth)
    for family, (_, named) in FAMILIES.items()
    if isinstance(micro := named["micro"], sizes.TransformerSize)
    for depth in DEPTHS
}
WINDOW = 7
BYTES = "bytes"  # stem of models that read text
SPECIAL_TOKENS = 1  # the mask token


def build(model: str, stem: str, width: int, image_size: int, num_classes: int, coupling: str = OWN) -> "list[Stage]":
    """Build the stages of a transformer. For text, `image_size` is the length of a sequence.

    Raises:
        ValueError: There is no such network (`check`, `check_coupling`).

    """
    check(model, stem, width, image_size)
    check_coupling(model, coupling)
    size = dataclasses.replace(MODELS[model], width=width)
    if isinstance(size, sizes.TransformerSize) and reads_text(model):
        from reproduce.models.revroberta import revroberta

        return revroberta(size, vocabulary=num_classes + SPECIAL_TOKENS, length=image_size, dropout=0.0)
    family, patch = model.partition("_")[0], _patch(stem)
    arguments: dict[str, Any] = {"num_classes": num_classes, "image_size": image_size, "patch": patch}
    if family == "revswin":
        arguments["window"] = _window(image_size // patch)
    if coupling != OWN:
        arguments |= {"bdia": True} | ({"bits": None} if coupling == "bdia_float" else {})
    stages: list[Stage] = pkgutil.resolve_name(f"reproduce.models.{family}:{family}")(size, **arguments)
    return stages


def check(model: str, stem: str, width: int, image_size: int) -> None:
    """Raise ValueError if there is no such network for these images or texts. The message contains the fix."""
    size, text = MODELS[model], reads_text(model)
    if text and stem != BYTES:
        raise ValueError(f"the stem of {model}, which reads text, must be {BYTES} (a token is a byte); got {stem!r}")
    patch = None if text else _patch(stem)
    try:
        dataclasses.replace(size, width=width)
    except ValueError as error:
        raise ValueError(f"width of {model} (published: {size.width}): {error}") from None
    if patch is None:
        return
    grid = sizes.patch_grid(image_size, patch)
    if isinstance(size, sizes.HierarchicalSize) and model.startswith("revswin"):
        sizes.window_grids(grid, _window(grid), len(size.depths))


def check_coupling(model: str, coupling: str) -> None:
    """Raise ValueError if the blocks of a model do not support a coupling. The message lists those that do."""
    if coupling not in COUPLINGS:
        raise ValueError(f"coupling must be {', '.join(COUPLINGS)}, got {coupling!r}")
    if coupling != OWN and not model.startswith("vit_"):
        fitting = ", ".join(name for name in MODELS if name.startswith("vit_"))
        raise ValueError(
            f"the coupling {coupling} makes a plain network x + h(x) invertible, but {model} is not plain; choose "
            f"{fitting}, or the coupling {OWN}"
        )


def reads_text(model: str) -> bool:
    """Return whether the model of that name takes text instead of images."""
    return model.startswith("revroberta_")


def default_stem(model: str, image_size: int) -> str:
    """Return the usual stem: bytes for text; for images patches of 16 (RevViT) or 4 pixels as published, or less."""
    if reads_text(model):
        return BYTES
    scale = 1 if model.startswith(("revvit", "vit")) else 2 if image_size < 128 else 4
    return f"patch{(16 if image_size >= 128 else 4 if image_size >= 32 else 2) // scale}"


def title(model: str, coupling: str = OWN) -> str:
    """Return the model's name in tables, such as RevViT-Tiny or BDIA-ViT-Tiny."""
    family, _, size = model.partition("_")
    coupled = {"bdia": "BDIA-", "bdia_float": "BDIA-float-"}.get(coupling, "")
    return f"{coupled}{FAMILIES[family][0]}-{size.capitalize()}"


def _patch(stem: str) -> int:
    match = re.fullmatch(r"patch([1-9]\d*)", stem)
    if not match:
        raise ValueError(
            f"the stem of a transformer must be patch<P> for patches of P x P pixels, such as patch4; got {stem!r}"
        )
    return int(match[1])


def _window(grid: int) -> int:
    return max(size for size in range(1, min(WINDOW, grid) + 1) if grid % size == 0)
