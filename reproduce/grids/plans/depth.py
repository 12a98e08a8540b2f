"""Depth: chains of reversible blocks, from 2 to 48, under PETRA, DSP and backpropagation."""

from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, ReconstructionCell, TrainingCell
from reproduce.grids import paper, small

COMPARED = (methods.PETRA, methods.DSP, methods.BACKPROPAGATION)
BLOCKS = (2, 8, 16, 32, 48)  # J = 4, 10, 18, 34, 50


def cells(scale: str) -> list[Cell]:
    """Every depth at two k, with PETRA, DSP and backpropagation."""
    if scale == "small":
        short: dict[str, Any] = {"epochs": 2, "drops": (1,)}
        return [
            _cell(small.settings(f"chain{n}", method, k, seed, **short), method, 100)
            for k in (1, 8)
            for n in BLOCKS
            for method in COMPARED
            for seed in small.SEEDS
        ]
    if scale == "paper":
        return [
            _cell(paper.settings("cifar10", f"chain{n}", method, k, 0), method, 1000)
            for k in (1, 8)
            for n in BLOCKS
            for method in COMPARED
        ]
    return []


def _cell(settings: dict[str, Any], method: Method, probe_every: int) -> Cell:
    if method.reconstructs and method.pipelined:
        return ReconstructionCell(**settings, probe_every=probe_every)
    return TrainingCell(**settings)
