"""Batches as functions of (seed, epoch, position), from tensors that lie on the training device.

A DataLoader with workers and generators gives other batches after a resume, or with another number of workers; and
for small images, moving single samples through Python takes longer than training on them. Here the whole data set lies
on the device as bytes, an epoch's order and augmentation are hashes of (seed, epoch, sample index)
(`reproduce.data.sample_hash`), and a batch is one indexed read: it can be had without those before it.

`Loader` is what training asks of any loader; `MemoryLoader` and `EvaluationBatches` are the ones for images in memory
(those for text are in `reproduce.data.text`).
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reproduce.cells.catalogue import Channels
from reproduce.data.crops import mirrored, padded_crops
from reproduce.data.sample_hash import AUGMENTATION, Hashes, sample_hashes, sample_order

PADDING = 4  # of the random crop, pixels on each side


class Loader(Protocol):
    """What delivers an epoch's batches.

    Attributes:
        name: `memory`, and more to come; recorded with every result.
        num_classes: labels are 0 … num_classes - 1.
        samples: in the data set.
        batch_size: samples of a batch.
        batches: of an epoch.

    """

    name: str
    num_classes: int
    samples: int
    batch_size: int
    batches: int

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches `start`, `start + step`, … of an epoch: images float32 [B, 3, H, W] and labels int64 [B].

        Of text: tokens int64 [B, T] and targets int64 [B, T], of which those that do not count are `IGNORED`.

        The last `batches % step` are left out: so several readers, each with a start of its own below `step`, get
        equally many, and no sample twice.
        """
        ...

    def close(self) -> None:
        """Give back what the loader holds."""
        ...


@dataclass(frozen=True)
class Images:
    """Labelled images in memory.

    Attributes:
        pixels: uint8 [N, 3, H, W].
        labels: int64 [N].
        num_classes: labels are 0 … num_classes - 1.
        mean: of each channel over the training set, in 0..1.
        deviation: standard deviation likewise.

    """

    pixels: Tensor
    labels: Tensor
    num_classes: int
    mean: Channels
    deviation: Channels

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4 or self.pixels.shape[1] != 3:
            raise ValueError(f"pixels are uint8 [N, 3, H, W], got {self.pixels.dtype} {tuple(self.pixels.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels are int64 [{self.pixels.shape[0]}], got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        lowest, highest = int(self.labels.min()), int(self.labels.max())
        if lowest < 0 or highest >= self.num_classes:
            raise ValueError(f"labels are 0..{self.num_classes - 1}, got {lowest}..{highest}")

    def to(self, device: torch.device) -> "Images":
        """The same images on `device`."""
        return Images(self.pixels.to(device), self.labels.to(device), self.num_classes, self.mean, self.deviation)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as float32 with mean 0 and deviation 1 a channel."""
        return normalised(pixels, self.mean, self.deviation)


def batch_numbers(batches: int, start: int, step: int) -> range:
    """The numbers of the batches of `Loader.epoch`."""
    return range(start, batches - batches % step, step)


def normalised(pixels: Tensor, mean: Channels, deviation: Channels) -> Tensor:
    """Bytes [..., 3, H, W] as float32 with this mean and deviation (in 0..1) taken out of each channel."""
    highest, means, deviations = _on_device(mean, deviation, pixels.device)
    return (pixels.float() / highest - means) / deviations


@functools.lru_cache(maxsize=16)
def _on_device(mean: Channels, deviation: Channels, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """255, mean and deviation, [1, 1, 1] and twice [3, 1, 1].

    Kept: for numbers that come from the host, a GPU first finishes all that it was asked for. Tensors, not numbers:
    a GPU multiplies by 1 / 255 where it is to divide by a number of Python's, which rounds half of all bytes otherwise
    than a CPU does, and so than `BatchFormat.table`.
    """
    highest, means, deviations = (torch.tensor(values, device=device) for values in ([255.0], mean, deviation))
    return highest.view(1, 1, 1), means.view(3, 1, 1), deviations.view(3, 1, 1)


class MemoryLoader:
    """Shuffled training batches from images in memory; an epoch's last, incomplete batch is left out.

    Args:
        images: on the training device.
        batch_size: samples of a batch.
        seed: of order and augmentation.
        flip_crop: whether each image is cropped at a random place after padding with black by 4 pixels, then
            mirrored with probability 1/2.

    Raises:
        ValueError: there are fewer samples than a batch has.

    """

    name = "memory"

    def __init__(self, images: Images, batch_size: int, *, seed: int, flip_crop: bool = False) -> None:
        self.num_classes = images.num_classes
        self.samples = len(images.labels)
        self.batch_size = batch_size
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(f"batch_size {batch_size} is larger than the data set ({self.samples} samples)")
        self._images = images
        self._seed = seed
        self._flip_crop = flip_crop

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loader`; on the images' device."""
        device = self._images.labels.device
        order = torch.from_numpy(sample_order(self._seed, epoch, self.samples)).to(device)
        pixels_of = (
            _Crops(self._images.pixels, sample_hashes(self._seed, epoch, AUGMENTATION, self.samples))
            if self._flip_crop
            else self._images.pixels.__getitem__
        )
        for batch in batch_numbers(self.batches, start, step):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            yield self._images.normalised(pixels_of(chosen)), self._images.labels[chosen]

    def close(self) -> None:
        """Nothing is held but memory."""


class EvaluationBatches:
    """The whole data set in order, without augmentation; the last batch may be smaller.

    Args:
        images: on the device.
        batch_size: samples of a batch.

    """

    def __init__(self, images: Images, batch_size: int) -> None:
        self.samples = len(images.labels)
        self._images = images
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self.samples, self._batch_size):
            part = slice(start, start + self._batch_size)
            yield self._images.normalised(self._images.pixels[part]), self._images.labels[part]

    def close(self) -> None:
        """There is nothing to give back."""


class _Crops:
    """The crops of one epoch: a random place after padding, then a random flip, read for a whole batch at once."""

    def __init__(self, pixels: Tensor, hashes: Hashes) -> None:
        """Of pixels [N, C, H, W] and one hash a sample."""
        tops, lefts = padded_crops(hashes, PADDING)
        self._pixels = pixels
        self._flips = torch.from_numpy(mirrored(hashes)).to(pixels.device)
        self._tops = torch.from_numpy(tops).to(pixels.device)
        self._lefts = torch.from_numpy(lefts).to(pixels.device)

    def __call__(self, chosen: Tensor) -> Tensor:
        """The crops of the chosen samples: int64 [B] -> uint8 [B, C, H, W]."""
        # The batch is padded, not once for all the data set, of which the device would hold a second, larger copy.
        padded = torch.nn.functional.pad(self._pixels[chosen], (PADDING,) * 4)  # [B, C, H + 2P, W + 2P]
        _, channel_count, height, width = self._pixels.shape
        rows = self._tops[chosen, None] + torch.arange(height, device=chosen.device)  # [B, H]
        columns = torch.arange(width, device=chosen.device)
        columns = torch.where(self._flips[chosen, None], width - 1 - columns, columns)  # [B, W]
        columns = columns + self._lefts[chosen, None]
        channels = torch.arange(channel_count, device=chosen.device)
        places = torch.arange(len(chosen), device=chosen.device)
        return padded[
            places[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]
