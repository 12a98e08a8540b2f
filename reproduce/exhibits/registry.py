"""List all exhibits in the order of the report: those of the paper in its order, studies, and supporting material.

Each can be made independently, so that several processes can work in parallel.
"""

from importlib import import_module

from reproduce.exhibits._exhibit import Exhibit

#: Names of modules in this package.
_MODULES = (
    "primary",
    *("accuracy", "table1", "table2", "table3", "table4", "table5", "table6", "figure4", "figure5", "figure6"),
    *("staleness", "length", "corrections", "depth", "couplings", "stability", "invertible", "scale_study", "tradeoff"),
    *("transformers", "bdia", "forward_gradients", "pareprop", "benchmarks", "history", "schedules", "cost"),
    "provenance",
)
EXHIBITS: tuple[Exhibit, ...] = tuple(import_module(f"reproduce.exhibits.{name}").EXHIBIT for name in _MODULES)
