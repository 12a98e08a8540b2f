"""From a cell's words to its batches."""

from functools import cache

import torch

from reproduce.cells import TrainingCell
from reproduce.data.digits import Split, digits
from reproduce.data.loader import EvaluationBatches, Loader, MemoryLoader

EVALUATION_BATCH = 512  # samples; without effect on the logits beyond rounding


def open_data(cell: TrainingCell, device: torch.device) -> tuple[Loader, EvaluationBatches]:
    """The cell's training batches and its test set, on `device`."""
    split = _digits(cell.image_size, device)
    loader = MemoryLoader(split.train, cell.batch_size, seed=cell.seed, flip_crop=cell.augmentation == "flip_crop")
    return loader, EvaluationBatches(split.test, EVALUATION_BATCH)


@cache
def _digits(image_size: int, device: torch.device) -> Split:
    """Read once a process: a grid has many cells."""
    return Split(*(images.to(device) for images in digits(image_size)))
