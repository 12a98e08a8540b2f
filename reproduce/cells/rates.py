"""Compute the learning rate as a function of the samples of an update, separately for each optimizer.

SGD's rate is proportional to them (Goyal et al. 2017), which is the paper's rule. AdamW divides by the size of its
gradients, so its rate follows their noise and grows with the square root (Malladi et al. 2022, arXiv 2205.10287). Cells
that differ only in batch or k follow one rule from one reference. Only such cells may share a table.
"""

import math

from petra_core.recipe import REFERENCE_BATCH, learning_rate
from reproduce.cells.kinds import TrainedCell

#: Usual rate for 256 samples per update: for SGD the paper's, for AdamW and NAdam that of DeiT (Touvron et al. 2021).
REFERENCES = {"sgd": 0.1, "adamw": 2.5e-4, "nadam": 2.5e-4}


def rate(optimizer: str, batch_size: int, accumulation: int) -> float:
    """Return the usual learning rate for updates of `accumulation` micro-batches of `batch_size` samples.

    Raises:
        ValueError: A number is out of range.

    """
    share = learning_rate(batch_size, accumulation, reference=1.0)  # fraction of 256 samples, with checked numbers
    return REFERENCES[optimizer] * _growth(optimizer, share)


def reference_of(cell: TrainedCell) -> float:
    """Return the learning rate of the cell at 256 samples per update, without rounding noise."""
    share = cell.batch_size * cell.accumulation * cell.replicas / REFERENCE_BATCH
    return float(f"{cell.learning_rate / _growth(cell.optimizer, share):.9g}")


def described(optimizer: str, reference: float) -> str:
    """Format the rule of an optimizer: 0.1·batch·k/256."""
    samples = f"batch·k/{REFERENCE_BATCH}"
    return f"{reference:.4g}·" + (samples if optimizer == "sgd" else f"√({samples})")


def _growth(optimizer: str, share: float) -> float:
    return share if optimizer == "sgd" else math.sqrt(share)
