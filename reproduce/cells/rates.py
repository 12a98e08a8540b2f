"""The learning rate as a function of the samples of an update: another one for each optimizer.

SGD's is in proportion to them (Goyal et al. 2017), which is the paper's rule. AdamW divides by the size of its
gradients, so its rate follows their noise, and grows with the square root (Malladi et al. 2022, arXiv 2205.10287).
Cells that differ in batch or k alone follow one rule from one reference, and only such may stand in one table.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from petra_core.recipe import REFERENCE_BATCH, learning_rate
from reproduce.cells.kinds import TrainedCell

__all__ = ["RULES", "RateRule", "described", "reference_of"]


@dataclass(frozen=True)
class RateRule:
    """The learning rate of an optimizer, as a function of the samples of an update.

    Attributes:
        reference: the usual learning rate for 256 samples an update.
        square_root: whether the rate grows with the square root of the samples; else in proportion.

    """

    reference: float
    square_root: bool = False

    def rate(self, batch_size: int, accumulation: int) -> float:
        """The usual learning rate for updates of `accumulation` micro-batches of `batch_size` samples.

        Raises:
            ValueError: a number out of its range.

        """
        share = learning_rate(batch_size, accumulation, reference=1.0)  # of 256 samples, its numbers checked
        return self.reference * self._growth(share)

    def reference_at(self, rate: float, samples: int) -> float:
        """The learning rate for 256 samples an update of which the rule makes `rate` for `samples`."""
        return rate / self._growth(samples / REFERENCE_BATCH)

    def _growth(self, share: float) -> float:
        return math.sqrt(share) if self.square_root else share


#: By the optimizer's name. The references: of SGD the paper's, of AdamW that of DeiT (Touvron et al. 2021).
RULES: Mapping[str, RateRule] = {"sgd": RateRule(0.1), "adamw": RateRule(2.5e-4, square_root=True)}


def reference_of(cell: TrainedCell) -> float:
    """The learning rate of the cell, as it would be with 256 samples an update; noise of rounding is taken off."""
    samples = cell.batch_size * cell.accumulation * cell.replicas
    return float(f"{RULES[cell.optimizer].reference_at(cell.learning_rate, samples):.9g}")


def described(optimizer: str, reference: float) -> str:
    """The rule of an optimizer as a formula: 0.1·batch·k/256."""
    samples = f"batch·k/{REFERENCE_BATCH}"
    return f"{reference:.4g}·" + (f"√({samples})" if RULES[optimizer].square_root else samples)
