"""Grids: all cells of a scale, those of every table and figure together, each once."""

import math
from dataclasses import dataclass
from functools import cache

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.grids import scales
from reproduce.grids.plans import PLANS
from reproduce.grids.scales import Scale


@dataclass(frozen=True)
class Grid:
    """The cells of a scale, in the order in which they are run."""

    scale: Scale
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        return self.scale.name


@cache
def grid_of(name: str) -> Grid:
    """The grid of the scale called `name`.

    Seed by seed, and for each seed table by table: stopped early, a run has something of everything. What is measured
    without training takes little time and comes first; at `smoke` last, since a person waits for the accuracies.

    Raises: CellError: there is none; near matches are listed.
    """
    scale = scales.by_name(name)
    cells = dict.fromkeys(cell for plan in PLANS.values() for cell in plan(name))
    measured = math.inf if name == "smoke" else -1
    return Grid(scale, tuple(sorted(cells, key=lambda cell: cell.seed if isinstance(cell, TrainedCell) else measured)))
