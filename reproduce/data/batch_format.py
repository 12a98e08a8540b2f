"""What the batches of a data set look like, whoever reads its files."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from reproduce.cells.catalogue import Channels
from reproduce.data.loader import normalised


@dataclass(frozen=True, kw_only=True)
class BatchFormat:
    """Images float32 [B, 3, image_size, image_size], normalised, and labels int64 [B].

    Attributes:
        num_classes: labels are 0 … num_classes - 1.
        image_size: height and width, pixels.
        mean: of each channel over the training set, in 0..1.
        deviation: standard deviation likewise.
        device: where batches are delivered to.

    """

    num_classes: int
    image_size: int
    mean: Channels
    deviation: Channels
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def table(self) -> NDArray[np.float32]:
        """What each byte becomes in each channel, [3, 256]: by the function that the other loaders use, to the bit."""
        every = torch.arange(256, dtype=torch.uint8).expand(3, 1, -1)
        table: NDArray[np.float32] = normalised(every, self.mean, self.deviation).view(3, 256).numpy()
        return table
