"""All tables and figures: the modules that know their cells.

Each has `cells(scale)`, what it needs of a scale (nothing, where it does not exist at that scale).

This module exports RUN_ORDER, Exhibit, by_name.
"""

from typing import Protocol

from reproduce.cells.kinds import Cell
from reproduce.exhibits import (
    accuracy,
    depth,
    figure4,
    figure5,
    figure6,
    invertible,
    length,
    scale_study,
    stability,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    transformers,
)

__all__ = ["RUN_ORDER", "Exhibit", "by_name"]


class Exhibit(Protocol):
    """A module of this package that shows something of the paper, or beyond it."""

    def cells(self, scale: str) -> list[Cell]:
        """What it needs of a scale."""


#: In the order in which cells are run: the cheap and the important first.
RUN_ORDER: tuple[Exhibit, ...] = (
    table1,
    table5,
    table3,
    table6,
    table2,
    figure4,
    table4,
    figure5,
    figure6,
    accuracy,
    stability,
    depth,
    invertible,
    scale_study,
    transformers,
    length,
)


def by_name() -> dict[str, Exhibit]:
    """The exhibits by the name of their module, such as `table2`, in the order in which they are run."""
    return {getattr(exhibit, "__name__", "").rpartition(".")[2]: exhibit for exhibit in RUN_ORDER}
