"""A network with images to measure it on: random ones, since bytes, FLOPs and seconds depend on shapes alone.

So no data set has to be there, and none is in these measurements.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from petra_core.recipe import sgd
from petra_core.stages import Stage
from reproduce.cells import networks, transformers
from reproduce.cells.kinds import MeasuredCell
from reproduce.measures.context import MEMORY_FORMAT, laid_out

#: The paper's optimizer, at a rate at which random images and random gradients cannot make the weights run away.
SGD = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)


@contextlib.contextmanager
def synthetic(cell: MeasuredCell, classes: int, device: torch.device) -> Iterator[tuple[list[Stage], Tensor, Tensor]]:
    """Stages, images and labels of the cell on `device`; the global random state is afterwards as it was before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(cell.seed)
        images, labels = micro_batch(cell, classes)
        stages = [stage.to(device).to(memory_format=MEMORY_FORMAT) for stage in networks.build(cell, classes)]
        yield stages, laid_out(images.to(device)), labels.to(device)


def micro_batch(cell: MeasuredCell, classes: int) -> tuple[Tensor, Tensor]:
    """Random images [batch, 3, height, width] and labels [batch], from torch's generator, on its default device.

    For a network that reads text tokens and targets, [batch, tokens].
    """
    if transformers.reads_text(cell.model):
        shape = cell.batch_size, cell.image_size
        return torch.randint(classes, shape), torch.randint(classes, shape)
    images = torch.randn(cell.batch_size, 3, cell.image_size, cell.image_size)
    return images, torch.randint(classes, (cell.batch_size,))
