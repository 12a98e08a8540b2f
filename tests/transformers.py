"""Make small transformers for the tests: one of each family, a few channels wide, in float64, and their data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from petra_core import Stage
from reproduce.models.revmvit import revmvit
from reproduce.models.revroberta import IGNORED, revroberta
from reproduce.models.revswin import revswin
from reproduce.models.revvit import revvit
from reproduce.models.sizes import HierarchicalSize, TransformerSize

CLASSES, TOKENS = 3, 11

Batch = tuple[Tensor, Tensor]


def small_revvit(**options: object) -> list[Stage]:
    size = TransformerSize(width=8, depth=3, heads=2)
    return revvit(size, num_classes=CLASSES, image_size=6, patch=2, **options)


def small_revswin(**options: object) -> list[Stage]:
    size = HierarchicalSize(width=4, depths=(2, 1), heads=2)
    return revswin(size, num_classes=CLASSES, image_size=8, patch=2, window=2, **options)


def small_revmvit(**options: object) -> list[Stage]:
    size = HierarchicalSize(width=4, depths=(1, 2), heads=1)
    return revmvit(size, num_classes=CLASSES, image_size=12, patch=2, **options)


def small_revroberta(**options: object) -> list[Stage]:
    size = TransformerSize(width=8, depth=3, heads=2)
    settings = {"vocabulary": TOKENS, "length": 7, "dropout": 0.0, **options}
    return revroberta(size, **settings)


FAMILIES: dict[str, Callable[..., list[Stage]]] = {
    "RevViT": small_revvit,
    "RevSwin": small_revswin,
    "RevMViT": small_revmvit,
    "RevRoBERTa": small_revroberta,
}
SIDE = {"RevViT": 6, "RevSwin": 8, "RevMViT": 12}
RANDOM = {"RevViT": {"dropout": 0.2}, "RevRoBERTa": {"dropout": 0.2}}
every_family = pytest.mark.parametrize("family", FAMILIES)


def network(family: str, *, seed: int = 0, **options: object) -> list[Stage]:
    torch.manual_seed(seed)
    return [stage.double() for stage in FAMILIES[family](**options)]


def random_network(family: str, **options: object) -> list[Stage]:
    """Make a network with dropout if the family has it."""
    return network(family, **RANDOM.get(family, {}), **options)


def batches(family: str, count: int, size: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    if family != "RevRoBERTa":
        side = SIDE[family]
        return [
            (
                torch.randn(size, 3, side, side, generator=generator, dtype=torch.float64),
                torch.randint(CLASSES, (size,), generator=generator),
            )
            for _ in range(count)
        ]
    data = []
    for _ in range(count):
        tokens = torch.randint(TOKENS, (size, 6), generator=generator)
        masked = torch.rand(size, 6, generator=generator) < 0.4
        data.append((tokens.masked_fill(masked, 0), tokens.masked_fill(~masked, IGNORED)))
    return data
