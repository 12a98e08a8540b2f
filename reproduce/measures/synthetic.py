"""Build a network with random inputs to measure it on. Bytes, FLOPs and seconds only depend on shapes.

So these measurements need no data set.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from petra_core.optimizers import sgd
from petra_core.stages import Stage
from reproduce.cells import networks, transformers
from reproduce.cells.kinds import MeasuredCell
from reproduce.measures.context import MEMORY_FORMAT, laid_out

#: The paper's optimizer, with a learning rate so small that training on random data does not diverge.
SGD = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)


@contextlib.contextmanager
def synthetic(cell: MeasuredCell, classes: int, device: torch.device) -> Iterator[tuple[list[Stage], Tensor, Tensor]]:
    """Provide stages, images and labels of the cell on `device`. Restore the global random state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(cell.seed)
        images, labels = micro_batch(cell, classes)
        stages = [stage.to(device).to(memory_format=MEMORY_FORMAT) for stage in networks.build(cell, classes)]
        yield stages, laid_out(images.to(device)), labels.to(device)


def micro_batch(cell: MeasuredCell, classes: int) -> tuple[Tensor, Tensor]:
    """Draw random images [batch, 3, height, width] and labels [batch] on torch's default device.

    For a language model, draw tokens and targets, [batch, tokens].
    """
    if transformers.reads_text(cell.model):
        shape = cell.batch_size, cell.image_size
        return torch.randint(classes, shape), torch.randint(classes, shape)
    images = torch.randn(cell.batch_size, 3, cell.image_size, cell.image_size)
    return images, torch.randint(classes, (cell.batch_size,))
