"""The learning rate as a function of the samples of an update: another one for each optimizer.

SGD's is in proportion to them (Goyal et al. 2017), which is the paper's rule. AdamW divides by the size of its
gradients, so its rate follows their noise, and grows with the square root (Malladi et al. 2022, arXiv 2205.10287).
Cells that differ in batch or k alone follow one rule from one reference, and only such may stand in one table.
"""

import math

from petra_core.recipe import REFERENCE_BATCH, learning_rate
from reproduce.cells.kinds import TrainedCell

__all__ = ["REFERENCES", "described", "rate", "reference_of"]

#: The usual rate for 256 samples an update: of SGD the paper's, of AdamW and NAdam that of DeiT (Touvron et al. 2021).
REFERENCES = {"sgd": 0.1, "adamw": 2.5e-4, "nadam": 2.5e-4}


def rate(optimizer: str, batch_size: int, accumulation: int) -> float:
    """The usual learning rate for updates of `accumulation` micro-batches of `batch_size` samples.

    Raises:
        ValueError: a number out of its range.

    """
    share = learning_rate(batch_size, accumulation, reference=1.0)  # of 256 samples, its numbers checked
    return REFERENCES[optimizer] * _growth(optimizer, share)


def reference_of(cell: TrainedCell) -> float:
    """The learning rate of the cell, as it would be with 256 samples an update; noise of rounding is taken off."""
    share = cell.batch_size * cell.accumulation * cell.replicas / REFERENCE_BATCH
    return float(f"{cell.learning_rate / _growth(cell.optimizer, share):.9g}")


def described(optimizer: str, reference: float) -> str:
    """The rule of an optimizer as a formula: 0.1·batch·k/256."""
    samples = f"batch·k/{REFERENCE_BATCH}"
    return f"{reference:.4g}·" + (samples if optimizer == "sgd" else f"√({samples})")


def _growth(optimizer: str, share: float) -> float:
    return share if optimizer == "sgd" else math.sqrt(share)
