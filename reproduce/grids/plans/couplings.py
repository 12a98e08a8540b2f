"""Reconstruction errors of transformers, by depth and by what makes their blocks invertible."""

import math
from dataclasses import dataclass

from petra_core import methods
from reproduce.cells.kinds import Cell, ReconstructionCell
from reproduce.cells.transformers import OWN
from reproduce.grids import recipes

SCALE = "small"
BLOCKS = (4, 12, 24, 48)
PRECISIONS = ("float32", "bf16")
K = 8  # so that the 98 ticks between forward and backward of the lowest of 48 blocks are a dozen updates
RATE, SAMPLES = 1e-4, 128  # at ten times as much, errors after 12 blocks exceed what is reconstructed


@dataclass(frozen=True)
class Coupling:
    """What makes the blocks of a transformer invertible.

    Attributes:
        title: in tables and figures.
        family: of models, whose sizes have the same blocks.
        name: the setting of a cell.
        precisions: in which it is looked at.

    """

    title: str
    family: str
    name: str = OWN
    precisions: tuple[str, ...] = ("float32",)

    def model(self, blocks: int) -> str:
        """The model as wide as micro with so many blocks."""
        return f"{self.family}_micro" + (str(blocks) if blocks != BLOCKS[0] else "")


ADDITIVE = Coupling("additive (RevViT)", "revvit", precisions=PRECISIONS)
COUPLINGS = (
    ADDITIVE,
    Coupling("BDIA", "vit", "bdia"),
    Coupling("BDIA without quantiser", "vit", "bdia_float"),
)


def cells(scale: str) -> list[Cell]:
    """Every depth in every arithmetic, at the small scale alone."""
    if scale != SCALE:
        return []
    return [
        planned(coupling, blocks, precision, seed)
        for coupling in COUPLINGS
        for blocks in BLOCKS
        for precision in coupling.precisions
        for seed in recipes.seeds(SCALE)
    ]


def planned(coupling: Coupling, blocks: int, precision: str = "float32", seed: int = 0) -> ReconstructionCell:
    """The cell of a coupling and a depth in an arithmetic."""
    batch_size = 24
    settings = recipes.settings(
        "smoke",
        coupling.model(blocks),
        methods.PETRA,
        K,
        seed,
        scale=SCALE,
        coupling=coupling.name,
        stem="patch2",
        width=48,
        batch_size=batch_size,
        epochs=3,
        warmup_epochs=1.0,
        drops=(),
        optimizer="adamw",
        learning_rate=RATE * math.sqrt(batch_size * K / SAMPLES),
        weight_decay=0.05,
        precision=precision,
    )
    return ReconstructionCell(**settings, probe_every=10)
