"""Compute the learning rate: as a function of the samples per update, and of the micro-batch.

The rate of SGD is proportional to the samples per update (Goyal et al. 2017), which is the paper's rule (arXiv
2406.02052, section 4.1). AdamW divides by the size of its gradients, so its rate follows their noise and grows with the
square root of the samples (Malladi et al. 2022, arXiv 2205.10287). Cells that differ only in batch or k follow one rule
from one reference, and only such cells may share a table.

During training the rate is a function of the *micro-batch* number and not of the update number. The stages of a
pipeline are at different updates at the same time, but they all see the same entering micro-batch. Its number therefore
determines the learning rate of all stages.
"""

import math
from dataclasses import dataclass

from petra_core.errors import check_int, check_number
from reproduce.cells.kinds import TrainedCell

REFERENCE_BATCH = 256  # samples per update at which the reference learning rate holds (Goyal et al. 2017)
#: The usual rate for 256 samples per update: the paper's for SGD, DeiT's for AdamW and NAdam (Touvron et al. 2021).
REFERENCES = {"sgd": 0.1, "adamw": 2.5e-4, "nadam": 2.5e-4}


def learning_rate(
    batch_size: int, accumulation: int = 1, *, optimizer: str = "sgd", reference: float | None = None
) -> float:
    """Return the learning rate after warm-up, for SGD the paper's: reference * batch_size * k / 256.

    Args:
        batch_size: Samples per micro-batch.
        accumulation: Micro-batches per update, k.
        optimizer: Name of the optimizer.
        reference: Learning rate for 256 samples per update; None for the optimizer's usual one.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an argument has the wrong type.

    """
    samples = check_int("batch_size", batch_size, 1) * check_int("accumulation", accumulation, 1)
    usual = REFERENCES[optimizer] if reference is None else check_number("reference", reference)
    return usual * _growth(optimizer, samples / REFERENCE_BATCH)


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning rate of each micro-batch: a linear warm-up from 0 to `base`, then constant between the drops.

    The cell checks the values.

    Attributes:
        base: Learning rate after warm-up.
        warmup_iterations: Micro-batches until `base` is reached; 0 for no warm-up.
        drops: Micro-batch numbers, in increasing order, at which the rate is multiplied by `factor`.
        factor: Factor of each drop.

    """

    base: float
    warmup_iterations: int = 0
    drops: tuple[int, ...] = ()
    factor: float = 0.1

    def __call__(self, iteration: int) -> float:
        """Return the learning rate of micro-batch `iteration`, counted from 0 over the whole run."""
        if iteration < self.warmup_iterations:
            return self.base * iteration / self.warmup_iterations
        return self.base * self.factor ** sum(iteration >= drop for drop in self.drops)


def reference_of(cell: TrainedCell) -> float:
    """Return the learning rate of the cell at 256 samples per update, without rounding noise."""
    share = cell.batch_size * cell.accumulation * cell.replicas / REFERENCE_BATCH
    return float(f"{cell.learning_rate / _growth(cell.optimizer, share):.9g}")


def describe_rule(optimizer: str, reference: float) -> str:
    """Format the rule of an optimizer: 0.1·batch·k/256."""
    samples = f"batch·k/{REFERENCE_BATCH}"
    return f"{reference:.4g}·" + (samples if optimizer == "sgd" else f"√({samples})")


def _growth(optimizer: str, share: float) -> float:
    return share if optimizer == "sgd" else math.sqrt(share)
