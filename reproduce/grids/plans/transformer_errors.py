"""Reconstruction errors of transformers, by depth."""

import math

from petra_core import methods
from reproduce.cells.kinds import Cell, ReconstructionCell
from reproduce.grids import small, smoke

SCALE = "small"
MODELS = {"revvit_micro": 4, "revvit_micro12": 12, "revvit_micro24": 24, "revvit_micro48": 48}  # with their blocks
PRECISIONS = ("float32", "bf16")
K = 8  # so that the 98 ticks between forward and backward of the lowest of 48 blocks are a dozen updates
RATE, SAMPLES = 1e-4, 128  # at ten times as much, errors after 12 blocks exceed what is reconstructed


def cells(scale: str) -> list[Cell]:
    """Every depth in both arithmetics; at the small scale alone."""
    if scale != SCALE:
        return []
    return [planned(model, precision, seed) for model in MODELS for precision in PRECISIONS for seed in small.SEEDS]


def planned(model: str, precision: str, seed: int = 0) -> ReconstructionCell:
    """The cell of a model in an arithmetic, `float32` or `bf16`."""
    batch_size = 24
    settings = smoke.digits_settings(
        "revnet18",
        methods.PETRA,
        K,
        seed,
        scale=SCALE,
        model=model,
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
