"""The scale `narrow`: the paper's own schedule on a network that a CPU can train, six to nine hours a cell on one core.

Everything is as at `paper` (300 epochs of CIFAR-10, 5 of warm-up, drops after 150 and 225, micro-batches of 64) but the
width, 8 instead of 64, and the loader.
"""

from typing import Any

from reproduce.grids import paper

ACCUMULATIONS = (1, 4)
SEEDS = (0,)
WIDTH = 8


def settings(*arguments: Any, **changes: Any) -> dict[str, Any]:
    """The paper's settings with a narrow network, and images in memory; see `paper.settings` for the arguments."""
    narrow: dict[str, Any] = {"scale": "narrow", "width": WIDTH, "loader": "memory"}
    return paper.settings(*arguments, **narrow | changes)
