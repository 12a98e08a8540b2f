"""Build a network and random inputs to measure it on.

Bytes, FLOPs and seconds only depend on shapes, so these measurements need no data set.
"""

import contextlib
from collections.abc import Iterator

import torch

from petra_core.optimizers import sgd
from petra_core.stages import Stage
from petra_core.tape import Value, as_streams, as_value
from petra_core.targets import Target, convert_tensors
from reproduce.cells import catalogue, networks, own, transformers
from reproduce.cells.kinds import MeasuredCell
from reproduce.measures.context import MEMORY_FORMAT, to_memory_format

#: The paper's optimizer, with a learning rate so small that training on random data does not diverge.
SGD = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)


@contextlib.contextmanager
def synthetic(cell: MeasuredCell, classes: int, device: torch.device) -> Iterator[tuple[list[Stage], Value, Target]]:
    """Provide stages, inputs and target of the cell on `device`. Restore the global random state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(cell.seed)
        inputs, target = micro_batch(cell, classes)
        stages = [stage.to(device).to(memory_format=MEMORY_FORMAT) for stage in networks.build(cell, classes)]
        placed = as_value(tuple(to_memory_format(stream.to(device)) for stream in as_streams(inputs)))
        yield stages, placed, convert_tensors(target, lambda tensor: tensor.to(device))


def micro_batch(cell: MeasuredCell, classes: int) -> tuple[Value, Target]:
    """Draw random images [batch, 3, height, width] and labels [batch] on torch's default device.

    For a language model, draw tokens and targets, [batch, tokens]. A user's function may return a micro-batch.
    """
    text = transformers.reads_text(cell.model)
    if own.is_own(cell.model):
        batch = own.micro_batch(cell.model)
        if batch is not None:
            return batch
        dataset = getattr(cell, "dataset", "")  # chains are measured without one
        text = bool(dataset) and catalogue.by_name(dataset).text
    if text:
        shape = cell.batch_size, cell.image_size
        return torch.randint(classes, shape), torch.randint(classes, shape)
    images = torch.randn(cell.batch_size, 3, cell.image_size, cell.image_size)
    return images, torch.randint(classes, (cell.batch_size,))
