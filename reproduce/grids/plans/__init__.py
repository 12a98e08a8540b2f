"""Define plans: the cells that each table, figure and study needs, by scale. There is one module per plan.

A plan is a function from a scale to its cells, or to none if it does not exist at that scale. Plans may share cells.
"""

from collections.abc import Callable

from reproduce.cells.kinds import Cell
from reproduce.grids.plans import (
    accuracy,
    bdia,
    corrections,
    couplings,
    depth,
    figure4,
    forward_gradients,
    gradients,
    invertible,
    length,
    stability,
    staleness,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    tradeoff,
    transformers,
)

Plan = Callable[[str], list[Cell]]

#: Plans by the key of their exhibit, in the order in which cells are run: cheap and important ones first.
PLANS: dict[str, Plan] = {
    "table1": table1.cells,
    "table5": table5.cells,
    "table3": table3.cells,
    "table6": table6.cells,
    "table2": table2.cells,
    "figure4": figure4.cells,
    "table4": table4.cells,
    "figure5": gradients.cells,
    "figure6": gradients.cells,
    "accuracy": accuracy.cells,
    "stability": stability.cells,
    "depth": depth.cells,
    "invertible": invertible.cells,
    "scale_study": table5.cells,
    "transformers": transformers.cells,
    "couplings": couplings.cells,
    "bdia": bdia.cells,
    "length": length.cells,
    "tradeoff": tradeoff.cells,
    "corrections": corrections.cells,
    "forward_gradients": forward_gradients.cells,
    "staleness": staleness.cells,
}
#: Plans whose cells run in the order of the plan if they are requested by name, instead of seed by seed.
IN_ORDER = ("staleness",)
