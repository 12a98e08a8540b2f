"""Batches from image files by Pillow, torchvision and a DataLoader: for ImageNet on a machine without FFCV.

torchvision's random transforms draw from the generator of whichever process has the sample, so that batches depend on
the number of workers, and the rest of an epoch cannot be had without its beginning. Here the sampler gives out, with
the index of a sample, its augmentation hash, and the box to crop follows from that.

A batch is one piece of work for one worker process, which returns bytes (a quarter of the floats' traffic). If a file
cannot be read it returns the error: raised there, it would arrive here as another one, without the path.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional

from reproduce.data.batch_format import BatchFormat
from reproduce.data.beton import UNDECODABLE, JpegFiles, UnreadableImageError
from reproduce.data.crops import CENTRE, Integers, mirrored, random_resized_crops
from reproduce.data.loader import batch_numbers, normalised
from reproduce.data.sample_hash import AUGMENTATION, Hashes, sample_hashes, sample_order

AUGMENTATIONS = ("none", "random_resized_crop")

Rows = NDArray[np.uint64]  # [B, 2]: index and hash of each sample
Batch = tuple[Tensor, Tensor]


class TorchvisionLoader:
    """Shuffled training batches from image files; an epoch's last, incomplete batch is left out.

    Args:
        files: the images and their labels.
        batch_size: samples of a batch.
        batch_format: of the batches.
        seed: of order and augmentation.
        augmentation: `none` or `random_resized_crop`.
        workers: processes that decode; 0 for this one. The batches do not depend on it.

    Raises:
        ValueError: a label is out of range, the augmentation is unknown, or there are fewer samples than a batch has.

    """

    name = "torchvision"

    def __init__(
        self,
        files: JpegFiles,
        batch_size: int,
        batch_format: BatchFormat,
        *,
        seed: int,
        augmentation: str,
        workers: int = 0,
    ) -> None:
        if augmentation not in AUGMENTATIONS:
            raise ValueError(f"the augmentation of image files is one of {AUGMENTATIONS}, got {augmentation!r}")
        self._source = _Source(files, batch_format, random=augmentation != "none", workers=workers)
        self._seed = seed
        self.num_classes = batch_format.num_classes
        self.samples = len(files.paths)
        self.batch_size = batch_size
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(f"batch_size {batch_size} is larger than the data set ({self.samples} samples)")

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[Batch]:
        """See `Loader`; on the format's device.

        Raises:
            UnreadableImageError: while iterating: a file cannot be read.

        """
        order = sample_order(self._seed, epoch, self.samples)
        numbers = list(batch_numbers(self.batches, start, step))
        chosen = order[: self.batches * self.batch_size].reshape(self.batches, -1)[numbers].ravel()
        hashes = sample_hashes(self._seed, epoch, AUGMENTATION, self.samples)[chosen]
        return self._source.batches(chosen, hashes, self.batch_size)

    def close(self) -> None:
        """Nothing is held between epochs; worker processes end with the iterator of theirs."""


class TorchvisionEvaluation:
    """All image files in order, without augmentation; the last batch may be smaller.

    The shorter side is resized to 256/224 of the image size, and the centre is cropped. Args and Raises: as
    `TorchvisionLoader`.
    """

    def __init__(self, files: JpegFiles, batch_size: int, batch_format: BatchFormat, *, workers: int = 0) -> None:
        self._source = _Source(files, batch_format, random=False, workers=workers)
        self._batch_size = batch_size
        self.samples = len(files.paths)

    def __iter__(self) -> Iterator[Batch]:
        return self._source.batches(np.arange(self.samples), np.zeros(self.samples, np.uint64), self._batch_size)

    def close(self) -> None:
        """Nothing is held between two passes."""


class _Source:
    """Batches of any samples, each with its hash."""

    def __init__(self, files: JpegFiles, batch_format: BatchFormat, *, random: bool, workers: int) -> None:
        for path, label in zip(files.paths, files.labels, strict=True):
            if not 0 <= label < batch_format.num_classes:
                raise ValueError(f"{path} has the label {label}, expected 0..{batch_format.num_classes - 1}")
        self._images = _Images(files, batch_format.image_size, random=random)
        self._format, self._workers = batch_format, workers

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        rows = np.stack((samples.astype(np.uint64), hashes), axis=1)
        device = self._format.device
        batches = DataLoader(
            self._images,
            batch_size=None,
            sampler=[rows[at : at + batch_size] for at in range(0, len(rows), batch_size)],
            num_workers=self._workers,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # of seeds that nobody uses; without one, torch's global generator moves on
        )
        for batch in batches:
            if isinstance(batch, UnreadableImageError):
                raise batch
            pixels, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
            yield normalised(pixels, self._format.mean, self._format.deviation), labels


class _Images(Dataset[Batch | UnreadableImageError]):
    """Whole batches: rows -> pixels uint8 [B, 3, size, size] and labels int64 [B], or the first error."""

    def __init__(self, files: JpegFiles, size: int, *, random: bool) -> None:
        self._files, self._size, self._random = files, size, random

    def __getitem__(self, rows: Rows) -> Batch | UnreadableImageError:
        try:
            pixels = torch.stack([self._read(int(sample), hash_) for sample, hash_ in rows])
        except UnreadableImageError as error:
            return error
        return pixels, torch.tensor([self._files.labels[int(sample)] for sample, _ in rows])

    def _read(self, sample: int, hash_: np.uint64) -> Tensor:
        path = self._files.paths[sample]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except UNDECODABLE as error:
            raise UnreadableImageError(path, str(error) or type(error).__name__) from error
        pixels: Tensor = functional.pil_to_tensor(self._crop(image, np.array([hash_])))
        return pixels

    def _crop(self, image: Image.Image, hashes: Hashes) -> Image.Image:
        cropped: Image.Image
        if self._random:
            width, height = image.size
            [box] = random_resized_crops(hashes, np.array([height]), np.array([width])).tolist()
            cropped = functional.resized_crop(image, *box, [self._size, self._size])
            return functional.horizontal_flip(cropped) if mirrored(hashes)[0] else cropped
        image = functional.resize(image, [round(self._size / CENTRE)])  # of the shorter side
        cropped = functional.center_crop(image, [self._size, self._size])
        return cropped
