"""Define plans: the cells that each table, figure and study needs, by scale. There is one module per plan.

A plan is a function from a scale to its cells, or to none if it does not exist at that scale. Plans may share cells.
"""

from collections.abc import Callable
from importlib import import_module

from reproduce.cells.kinds import Cell

Plan = Callable[[str], list[Cell]]

#: Keys of exhibits with a plan, in the order in which cells are run: cheap and important ones first.
_KEYS = (
    *("table1", "table5", "table3", "table6", "table2", "figure4", "table4", "figure5", "figure6", "accuracy"),
    *("stability", "depth", "invertible", "transformers", "couplings", "bdia", "length", "tradeoff"),
    *("corrections", "forward_gradients", "staleness"),
)
#: Modules of the plans that are not named as their exhibit.
_MODULES = {"figure5": "gradients", "figure6": "gradients"}
PLANS: dict[str, Plan] = {key: import_module(f"{__name__}.{_MODULES.get(key, key)}").cells for key in _KEYS}
#: Plans whose cells run in the order of the plan if they are requested by name, instead of seed by seed.
IN_ORDER = ("staleness",)
