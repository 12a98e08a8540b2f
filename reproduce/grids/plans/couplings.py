"""Reconstruction errors of transformers, by depth and by coupling of their blocks."""

import math
from dataclasses import dataclass

from petra_core import methods
from reproduce.cells.kinds import Cell, ReconstructionCell
from reproduce.cells.transformers import OWN
from reproduce.grids import recipes

SCALE = "small"
BLOCKS = (4, 12, 24, 48)
PRECISIONS = ("float32", "bf16")
K = 8  # the 98 ticks between forward and backward of the lowest of 48 blocks are then a dozen updates
RATE, SAMPLES = 1e-4, 128  # at a ten times larger rate, errors after 12 blocks exceed the reconstructed values


@dataclass(frozen=True)
class Coupling:
    """A coupling that makes the blocks of a transformer invertible.

    Attributes:
        title: Title in tables and figures.
        family: Family of models whose sizes have the same blocks.
        name: Coupling of a cell.
        precisions: Precisions to compare.

    """

    title: str
    family: str
    name: str = OWN
    precisions: tuple[str, ...] = ("float32",)

    def model(self, blocks: int) -> str:
        """Return the model with this number of blocks and the width of micro."""
        return f"{self.family}_micro" + (str(blocks) if blocks != BLOCKS[0] else "")


ADDITIVE = Coupling("additive (RevViT)", "revvit", precisions=PRECISIONS)
COUPLINGS = (ADDITIVE, Coupling("BDIA", "vit", "bdia"), Coupling("BDIA without quantiser", "vit", "bdia_float"))


def cells(scale: str) -> list[Cell]:
    """Return every depth in every arithmetic, at the small scale only."""
    if scale != SCALE:
        return []
    return [
        plan_cell(coupling, blocks, precision, seed)
        for coupling in COUPLINGS
        for blocks in BLOCKS
        for precision in coupling.precisions
        for seed in recipes.seeds(SCALE)
    ]


def plan_cell(coupling: Coupling, blocks: int, precision: str = "float32", seed: int = 0) -> ReconstructionCell:
    """Return the cell of a coupling and a depth in an arithmetic."""
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
