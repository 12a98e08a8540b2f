"""Table 1: every method on a chain of equal stages, over J and k."""

from collections.abc import Sequence

from petra_core import methods
from reproduce.cells.kinds import Cell, ComplexityCell

#: Network by scale: channels per stream, pixels, samples; seconds per cell at `smoke`, minutes at `paper` on a CPU.
NETWORKS = {"smoke": (8, 8, 8), "small": (16, 16, 32), "paper": (64, 32, 64)}
FIRST_INNER = 1  # the stage that represents all inner ones
REFERENCE_DEPTH = 4  # inner stages of the networks with varied k
DEPTHS = {"smoke": (4, 2, 8), "small": (4, 2, 8, 16), "paper": (4,)}  # inner stages, at k = 1
ACCUMULATIONS = (1, 4, 2, 8, 16, 32)  # at the reference depth


def cells(scale: str) -> list[Cell]:
    """Return every method, over J at k = 1 and over k at one J; at `paper`, with large stages, at one J and k."""
    if scale not in NETWORKS:
        return []
    depths, accumulations = DEPTHS[scale], ACCUMULATIONS[:1] if scale == "paper" else ACCUMULATIONS
    return [
        *chains(scale, depth=REFERENCE_DEPTH, accumulations=accumulations),
        *(cell for depth in depths if depth != REFERENCE_DEPTH for cell in chains(scale, depth=depth)),
    ]


def chains(
    scale: str = "smoke", *, depth: int = REFERENCE_DEPTH, accumulations: Sequence[int] = (1,)
) -> list[ComplexityCell]:
    """Return every method at every k, on a chain of `depth` inner stages."""
    width, image_size, batch_size = NETWORKS[scale]
    return [
        ComplexityCell(
            scale=scale,
            model=f"chain{depth}",
            stem="stride1",
            image_size=image_size,
            width=width,
            method=method.name,
            accumulation=accumulation,
            batch_size=batch_size,
            seed=0,
        )
        for accumulation in accumulations
        for method in methods.PAPER
    ]
