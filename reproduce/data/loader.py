"""Batches as functions of (seed, epoch, position).

A DataLoader with workers and generators gives other batches after a resume, or with another number of workers. Here an
epoch's order and augmentation are hashes of (seed, epoch, sample index) (`reproduce.data.sample_hash`), so a batch can
be had without those before it. `Loader` and `Evaluation` decide which samples a batch has; a `Source` reads them:
`InMemory` below, `FfcvFile`, `ImageFiles` (by torchvision) and `Text` in modules of their own.
"""

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from reproduce.cells.catalogue import Channels
from reproduce.data.beton import RawImages
from reproduce.data.crops import Integers, mirrored, padded_crops
from reproduce.data.sample_hash import AUGMENTATION, EVALUATION, Hashes, sample_hashes, sample_order

Batch = tuple[Tensor, Tensor]

PADDING = 4  # of the random crop, pixels on each side


@dataclass(frozen=True, kw_only=True)
class BatchFormat:
    """Images float32 [B, 3, image_size, image_size], normalised, and labels int64 [B]."""

    num_classes: int  # labels are 0 … num_classes - 1
    image_size: int  # height and width, pixels
    mean: Channels  # of each channel over the training set, in 0..1
    deviation: Channels  # standard deviation likewise
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where batches are delivered to

    def normaliser(self) -> Callable[[Tensor], Tensor]:
        """What makes of bytes [..., 3, H, W] on the device float32 with mean 0 and deviation 1 a channel.

        It divides by tensors: a GPU multiplies by 1 / 255 where it is to divide by a number of Python's, which rounds
        half of all bytes otherwise than a CPU does. They are made once: for numbers that come from the host a GPU first
        finishes all that it was asked for.
        """
        highest, means, deviations = (
            torch.tensor(values, device=self.device).view(-1, 1, 1) for values in ([255.0], self.mean, self.deviation)
        )
        return lambda pixels: (pixels.float() / highest - means) / deviations


class Source(abc.ABC):
    """Samples, `samples` in number, with labels 0 … num_classes - 1, to be read in any order."""

    num_classes: int
    samples: int

    @abc.abstractmethod
    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        """The batches of these samples [n] in this order, each augmented by its hash [n]; the last may be smaller.

        Returns:
            Images float32 [B, 3, H, W] and labels int64 [B]. Of text tokens int64 [B, T] and targets int64 [B, T],
            of which those that do not count are `IGNORED`.

        """

    def close(self) -> None:  # noqa: B027  # memory alone needs none
        """End threads, also those of batches that were left before their end."""


class Loader:
    """Shuffled training batches, `batches` an epoch; an epoch's last, incomplete batch is left out.

    Raises: ValueError: there are fewer samples than a batch has.
    """

    def __init__(self, source: Source, batch_size: int, *, seed: int) -> None:
        self.source, self._seed = source, seed
        self.batch_size, self.num_classes, self.samples = batch_size, source.num_classes, source.samples
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(f"batch_size {batch_size} is larger than this training set ({self.samples} samples)")

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[Batch]:
        """Batches `start`, `start + step`, … of an epoch.

        The last `batches % step` are left out: so several readers, each with a start of its own below `step`, get
        equally many, and no sample twice.

        Raises: DataError: while iterating: an image cannot be decoded.
        """
        return self.source.batches(*self.samples_of(epoch, start, step), self.batch_size)

    def samples_of(self, epoch: int, start: int, step: int) -> tuple[Integers, Hashes]:
        """Return the samples of these batches of an epoch, one batch after the other, and their hashes: [n] each."""
        order = sample_order(self._seed, epoch, self.samples)
        batches = order[: self.batches * self.batch_size].reshape(self.batches, self.batch_size)
        chosen = batches[start : self.batches - self.batches % step : step].ravel()
        hashes = sample_hashes(self._seed, epoch, AUGMENTATION, self.samples)
        return chosen, hashes[chosen]

    def close(self) -> None:
        self.source.close()


class Evaluation:
    """The whole of a source in order, the same for all seeds; the last batch may be smaller.

    `samples` is the number of labels that count: one for each image, of text those that are not `IGNORED`.
    """

    def __init__(self, source: Source, batch_size: int) -> None:
        self._source, self._batch_size = source, batch_size
        self.samples = source.samples
        self.batches = -(-source.samples // batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.share(0, 1)

    def share(self, start: int, step: int) -> Iterator[Batch]:
        """Batches `start`, `start + step`, …: of several readers, each reads no others, and some may have one more."""
        samples = np.arange(self._source.samples)
        chosen = samples[samples // self._batch_size % step == start]
        hashes = sample_hashes(0, 0, EVALUATION, self._source.samples)
        return self._source.batches(chosen, hashes[chosen], self._batch_size)

    def close(self) -> None:
        self._source.close()


class InMemory(Source):
    """Images that lie on the training device as bytes: a batch is one indexed read.

    For small images, moving single samples through Python takes longer than training on them. To augment an image is to
    crop it at a random place after padding with black by 4 pixels, then to mirror it with probability 1/2.
    `reproduce.data.resident` makes the same batches within a recorded step.

    Attributes:
        pixels: uint8 [N, 3, size, size], on the device.
        labels: int64 [N], on the device.
        augment: whether images are cropped and mirrored.
        normalised: makes float32 of bytes (`BatchFormat.normaliser`).

    """

    def __init__(self, images: RawImages, batch_format: BatchFormat, *, augment: bool = False) -> None:
        self.num_classes, self.samples = batch_format.num_classes, len(images.labels)
        self._device, self._size, self.augment = batch_format.device, batch_format.image_size, augment
        self.pixels, self.labels = (torch.from_numpy(array).to(self._device) for array in images)
        self.normalised = batch_format.normaliser()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        values = (samples, *padded_crops(hashes, PADDING), mirrored(hashes))
        places = [torch.from_numpy(value).to(self._device) for value in values]
        for at in range(0, len(samples), batch_size):
            chosen, *crop = (place[at : at + batch_size] for place in places)
            pixels = self._crops(chosen, *crop) if self.augment else self.pixels[chosen]
            yield self.normalised(pixels), self.labels[chosen]

    def _crops(self, chosen: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        """Windows of the images padded with black, by their places [B]: uint8 [B, 3, size, size], read all at once."""
        # The batch is padded, not once for all the data set, of which the device would hold a second, larger copy.
        padded = torch.nn.functional.pad(self.pixels[chosen], (PADDING,) * 4)
        batch, channels, pixels = (torch.arange(n, device=self._device) for n in (len(chosen), 3, self._size))
        rows = tops[:, None] + pixels  # [B, H]
        columns = lefts[:, None] + torch.where(flips[:, None], self._size - 1 - pixels, pixels)  # [B, W]
        return padded[
            batch[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]
