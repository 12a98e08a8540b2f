"""The inspection of users' modules: whether a network trains as plain autograd would train it.

    modules       before training: stages, parameters and optimizers that the engine cannot train
    evaluations   in the first micro-batches: blocks that are no pure functions (`Inspection`)
    structure     at every update: parameters that were frozen, added or replaced
    ownership     in the first micro-batches: outputs that share memory with something else
    preflight     all of it without training (`petra_core.check`)

The engine sees `Inspection.block`, `NoInspection` (`interface`), `Structure` and `OwnedOutputs`. After the first
micro-batches every block has `NO_INSPECTION`, which does nothing.
"""

from petra_core.inspection.evaluations import INSPECTED, BlockInspection, Inspection
from petra_core.inspection.interface import NO_INSPECTION, NoInspection, Projections
from petra_core.inspection.ownership import OwnedOutputs
from petra_core.inspection.structure import Structure

__all__ = [
    "INSPECTED",
    "NO_INSPECTION",
    "BlockInspection",
    "Inspection",
    "NoInspection",
    "OwnedOutputs",
    "Projections",
    "Structure",
]
