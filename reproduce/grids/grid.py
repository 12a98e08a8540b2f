"""Combine the cells of all tables and figures of a scale into a grid, each cell once."""

import math
from functools import cache

from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.grids import scales
from reproduce.grids.plans import PLANS, Plan


@cache
def cells_of(plan: Plan, scale: str) -> tuple[Cell, ...]:
    """Return the cells of a plan at a scale, made once: a cell knows its identity when it has been asked for it."""
    return tuple(plan(scale))


@cache
def grid_of(scale: str) -> tuple[Cell, ...]:
    """Return the cells of a scale, in the order in which they are run.

    The order is seed by seed, and for each seed table by table, so that an early stop leaves some results of every
    table. Measurements without training are fast and come first; at `smoke` they come last, because a user waits for
    the accuracies.

    Raises:
        CellError: There is no such scale. The message lists near matches.

    """
    scales.by_name(scale)  # raises
    cells = dict.fromkeys(cell for plan in PLANS.values() for cell in cells_of(plan, scale))
    measured = math.inf if scale == "smoke" else -1
    return tuple(sorted(cells, key=lambda cell: cell.seed if isinstance(cell, TrainedCell) else measured))
