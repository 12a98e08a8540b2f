"""Grids: all cells of a scale, those of every table and figure together, each once.

This module exports Grid, by_name.
"""

from dataclasses import dataclass
from functools import cache

from reproduce import scales
from reproduce.cells import Cell, TrainedCell
from reproduce.scales import Scale
from reproduce.tables import exhibits

__all__ = ["Grid", "by_name"]


@dataclass(frozen=True)
class Grid:
    """The cells of a scale.

    Attributes:
        scale: what is expected of them.
        cells: in the order in which they are run.

    """

    scale: Scale
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """That of the scale."""
        return self.scale.name


@cache
def by_name(name: str) -> Grid:
    """The grid of the scale called `name`.

    Seed by seed, and for each seed table by table: stopped early, a run has something of everything.

    Raises:
        CellError: there is none; near matches are listed.

    """
    scale = scales.by_name(name)
    cells = dict.fromkeys(cell for exhibit in exhibits.RUN_ORDER for cell in exhibit.cells(name))
    return Grid(scale, tuple(sorted(cells, key=lambda cell: cell.seed if isinstance(cell, TrainedCell) else -1)))
