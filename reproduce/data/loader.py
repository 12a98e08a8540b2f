"""Provide batches as functions of (seed, epoch, position).

The batches of a DataLoader with workers and generators change after a resume, or with the number of workers. Here the
order and the augmentation of an epoch are hashes of (seed, epoch, sample index) (`reproduce.data.sample_hash`), so a
batch can be read without those before it.

`Loader` and `Evaluation` decide which samples a batch contains. A `Source` reads them: `InMemory` in this module,
`FfcvFile`, `ImageFiles` (torchvision) and `Text` in other modules.
"""

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from reproduce.cells.catalogue import Channels
from reproduce.data.beton import RawImages
from reproduce.data.crops import Integers, choose_mirrored, choose_padded_crops
from reproduce.data.sample_hash import AUGMENTATION, EVALUATION, HELD_OUT, Hashes, sample_hashes, sample_order

Batch = tuple[Tensor, Tensor]

PADDING = 4  # pixels on each side before a random crop


@dataclass(frozen=True, kw_only=True)
class BatchFormat:
    """Format of batches: normalised images, float32 [B, 3, image_size, image_size], and labels, int64 [B].

    Attributes:
        num_classes: Labels are 0 … num_classes - 1.
        image_size: Height and width in pixels.
        mean: Mean of each channel over the training set, in 0..1.
        deviation: Standard deviation of each channel over the training set, in 0..1.
        device: Device of the batches.

    """

    num_classes: int
    image_size: int
    mean: Channels
    deviation: Channels
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def normaliser(self) -> Callable[[Tensor], Tensor]:
        """Return a function that converts bytes to float32 with mean 0 and standard deviation 1 in each channel.

        The function takes tensors [..., 3, H, W] on the device. It divides by tensors: to divide by a Python number, a
        GPU multiplies by its reciprocal, which rounds half of all byte values differently from a CPU. The tensors are
        created only once, because a copy from the host to a GPU waits for all pending work.
        """
        highest, means, deviations = (
            torch.tensor(values, device=self.device).view(-1, 1, 1) for values in ([255.0], self.mean, self.deviation)
        )
        return lambda pixels: (pixels.float() / highest - means) / deviations


class Source(abc.ABC):
    """Samples of a data set, which can be read in any order.

    Attributes:
        num_classes: Labels are 0 … num_classes - 1.
        samples: Number of samples.

    """

    num_classes: int
    samples: int

    @abc.abstractmethod
    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of the given samples in this order.

        Args:
            samples: Indices of the samples, [n].
            hashes: Augmentation hash of each sample, [n].
            batch_size: Samples per batch. The last batch may be smaller.

        Returns:
            Images float32 [B, 3, H, W] and labels int64 [B]. For text: tokens int64 [B, T] and targets int64 [B, T],
            where targets that do not count are `IGNORED`.

        """

    def close(self) -> None:  # noqa: B027  # a source in memory has nothing to close
        """End all threads, including those of batches that were not read to the end."""


def hold_out(samples: int, held_out: int) -> tuple[Integers, Integers]:
    """Divide a training set, the same way for all seeds.

    Args:
        samples: Number of samples of the set.
        held_out: Number of samples that are not trained on.

    Returns:
        Indices of the samples that are trained on and of those held out, each in order.

    """
    order = sample_order(0, 0, samples, HELD_OUT)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


class Loader:
    """Shuffled training batches. The last, incomplete batch of an epoch is dropped.

    Args:
        source: Source of the batches.
        batch_size: Samples per batch.
        seed: Seed of order and augmentation.
        chosen: Indices of the samples that are used, [n]; all by default.

    Attributes:
        batches: Number of batches in an epoch.

    Raises:
        ValueError: If there are fewer samples than one batch needs.

    """

    def __init__(self, source: Source, batch_size: int, *, seed: int, chosen: Integers | None = None) -> None:
        self.source, self._seed = source, seed
        self._chosen = np.arange(source.samples) if chosen is None else chosen
        self.batch_size, self.num_classes, self.samples = batch_size, source.num_classes, len(self._chosen)
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(f"batch_size {batch_size} is larger than this training set ({self.samples} samples)")

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[Batch]:
        """Return batches `start`, `start + step`, … of an epoch.

        The last `batches % step` batches are dropped. So `step` readers with different values of `start` read the same
        number of batches, and no sample is read twice.

        Raises:
            DataError: During iteration, if an image cannot be decoded.

        """
        return self.source.batches(*self.samples_of(epoch, start, step), self.batch_size)

    def samples_of(self, epoch: int, start: int, step: int) -> tuple[Integers, Hashes]:
        """Return the samples of these batches of an epoch, batch by batch, and their hashes, each [n]."""
        order = self._chosen[sample_order(self._seed, epoch, self.samples)]
        batches = order[: self.batches * self.batch_size].reshape(self.batches, self.batch_size)
        chosen = batches[start : self.batches - self.batches % step : step].ravel()
        hashes = sample_hashes(self._seed, epoch, AUGMENTATION, self.source.samples)
        return chosen, hashes[chosen]

    def close(self) -> None:
        self.source.close()


class Evaluation:
    """All or the chosen samples of a source in order, the same for all seeds. The last batch may be smaller.

    Attributes:
        samples: Number of labels that count: one per image, or for text the number of targets that are not `IGNORED`.
        batches: Number of batches.

    """

    def __init__(self, source: Source, batch_size: int, chosen: Integers | None = None) -> None:
        self._source, self._batch_size = source, batch_size
        self._chosen = np.arange(source.samples) if chosen is None else chosen
        self.samples = len(self._chosen)
        self.batches = -(-self.samples // batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.share(0, 1)

    def share(self, start: int, step: int) -> Iterator[Batch]:
        """Return batches `start`, `start + step`, … for one of `step` readers. Some readers may get one batch more."""
        chosen = self._chosen[np.arange(len(self._chosen)) // self._batch_size % step == start]
        hashes = sample_hashes(0, 0, EVALUATION, self._source.samples)
        return self._source.batches(chosen, hashes[chosen], self._batch_size)

    def close(self) -> None:
        self._source.close()


class InMemory(Source):
    """Images as bytes in the memory of the training device, from which one indexed read makes a batch.

    For small images, moving single samples through Python takes longer than training on them. Augmentation pads an
    image with 4 black pixels on each side, crops it at a random position and mirrors it with probability 1/2.
    `reproduce.data.resident` makes the same batches within a CUDA graph.

    Attributes:
        pixels: Images, uint8 [N, 3, size, size], on the device.
        labels: Labels, int64 [N], on the device.
        augment: Whether images are cropped and mirrored.
        normalised: Function that converts bytes to normalised float32 (`BatchFormat.normaliser`).

    """

    def __init__(self, images: RawImages, batch_format: BatchFormat, *, augment: bool = False) -> None:
        self.num_classes, self.samples = batch_format.num_classes, len(images.labels)
        self._device, self._size, self.augment = batch_format.device, batch_format.image_size, augment
        self.pixels, self.labels = (torch.from_numpy(array).to(self._device) for array in images)
        self.normalised = batch_format.normaliser()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        values = (samples, *choose_padded_crops(hashes, PADDING), choose_mirrored(hashes))
        places = [torch.from_numpy(value).to(self._device) for value in values]
        for at in range(0, len(samples), batch_size):
            chosen, *crop = (place[at : at + batch_size] for place in places)
            pixels = self._crops(chosen, *crop) if self.augment else self.pixels[chosen]
            yield self.normalised(pixels), self.labels[chosen]

    def _crops(self, chosen: Tensor, tops: Tensor, lefts: Tensor, flips: Tensor) -> Tensor:
        """Crop and mirror the chosen images in one indexed read: uint8 [B, 3, size, size]."""
        # Each batch is padded. Padding the data set once would need a second, larger copy of it on the device.
        padded = torch.nn.functional.pad(self.pixels[chosen], (PADDING,) * 4)
        batch, channels, pixels = (torch.arange(n, device=self._device) for n in (len(chosen), 3, self._size))
        rows = tops[:, None] + pixels  # [B, H]
        columns = lefts[:, None] + torch.where(flips[:, None], self._size - 1 - pixels, pixels)  # [B, W]
        return padded[
            batch[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]
