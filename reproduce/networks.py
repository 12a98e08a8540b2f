"""From a cell's words to the stages of its network."""

from petra_core import models
from petra_core.stages import Stage
from reproduce.cells import ComplexityCell, TrainingCell


def build(cell: TrainingCell | ComplexityCell, num_classes: int) -> list[Stage]:
    """The stages of the cell's network, initialised from torch's global generator; one block a stage."""
    family, depth = cell.model.rstrip("0123456789"), int(cell.model.lstrip("abcdefghijklmnopqrstuvwxyz"))
    if family == "chain":
        stride = int(cell.stem.removeprefix("stride"))
        return models.chain(depth, num_classes=num_classes, channels=cell.width, stem_stride=stride)
    make = models.revnet if family == "revnet" else models.resnet
    return make(depth, num_classes=num_classes, stem=cell.stem, width=cell.width)
