"""Grids: all cells of a scale, those of every table and figure together, each once."""

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
    """The cells of a scale, in the order in which they are run.

    Seed by seed, and for each seed table by table: stopped early, a run has something of everything. What is measured
    without training takes little time and comes first; at `smoke` last, since a person waits for the accuracies.

    Raises: CellError: there is no such scale; near matches are listed.
    """
    scales.by_name(scale)  # raises
    cells = dict.fromkeys(cell for plan in PLANS.values() for cell in cells_of(plan, scale))
    measured = math.inf if scale == "smoke" else -1
    return tuple(sorted(cells, key=lambda cell: cell.seed if isinstance(cell, TrainedCell) else measured))
