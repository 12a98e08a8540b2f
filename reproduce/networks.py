"""From a cell's words to the stages of its network."""

from petra_core import models
from petra_core.stages import Stage
from reproduce import transformers
from reproduce.cells import MeasuredCell, TrainedCell


def build(cell: TrainedCell | MeasuredCell, num_classes: int) -> list[Stage]:
    """The stages of the cell's network, initialised from torch's global generator; one block a stage."""
    if cell.model in transformers.MODELS:
        return transformers.build(cell.model, cell.stem, cell.width, cell.image_size, num_classes)
    family = cell.model.rstrip("0123456789")
    depth = int(cell.model.removeprefix(family))
    if family == "chain":
        stride = int(cell.stem.removeprefix("stride"))
        return models.chain(depth, num_classes=num_classes, channels=cell.width, stem_stride=stride)
    make = {"revnet": models.revnet, "resnet": models.resnet, "invertible_revnet": models.invertible_revnet}
    return make[family](depth, num_classes=num_classes, stem=cell.stem, width=cell.width)
