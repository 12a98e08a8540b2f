"""Read batches from a memory-mapped `.beton` file, which a separate thread decodes ahead of time.

FFCV decodes the JPEG files. Its `Loader` is not used, because its batches are not reproducible enough for this suite:

- Its seed fixes only the order, and seed 1 epoch 1 has the same order as seed 2 epoch 0.
- Augmentations draw from per-thread generators.
- An epoch can only be started at its beginning.
- A batch is overwritten five batches later, while a pipeline may still hold it.

Here the order and the augmentation hashes are given (`reproduce.data.loader`), and every batch has separate memory.
Batches of raw images are bitwise equal to those of `InMemory`.

This module imports FFCV. Import it only where it is used.
"""

import dataclasses
import io
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from reproduce.data import ffcv_kernels as kernels
from reproduce.data.beton import AGAIN, ANOTHER, RAW, UNDECODABLE, Beton, in_order
from reproduce.data.crops import Integers, centre_crops, choose_mirrored, choose_padded_crops, random_resized_crops
from reproduce.data.errors import DataError, check_labels
from reproduce.data.loader import PADDING, Batch, BatchFormat, Source
from reproduce.data.sample_hash import Hashes

AHEAD = 3  # batches that are decoded before they are needed

#: Decode samples [B] with their hashes [B] from the bytes of a file into float32 [B, 3, H, W].
Decode = Callable[[NDArray[np.uint8], Integers, Hashes, NDArray[np.float32]], None]


class FfcvFile(Source):
    """Read samples from a `.beton` file.

    Args:
        path: The file.
        batch_format: Shape and normalisation of the batches.
        augment: Whether to augment. If so, raw images are cropped and mirrored as in `InMemory`, and random boxes of
            JPEG files are resized and mirrored. If not, the centred square of 224/256 of the shorter side of a JPEG
            file is resized.
        workers: Number of threads that decode. The batches do not depend on it.

    Raises:
        FileNotFoundError: If the file does not exist.
        DataError: If the file is damaged, or if its images or labels do not match the format.

    """

    def __init__(self, path: Path, batch_format: BatchFormat, *, augment: bool, workers: int = 1) -> None:
        file = Beton(path)
        check_labels(file.labels.tolist(), 0, batch_format.num_classes, path, ANOTHER)
        self.num_classes, self.samples = batch_format.num_classes, len(file)
        decoder = _raw_decoder if (file.modes == RAW).all() else _jpeg_decoder
        self._decoder = decoder(file, batch_format, augment)
        self._content, self._labels, self._format = np.memmap(path, np.uint8, "r"), file.labels, batch_format
        self._workers, self._pool = workers, ThreadPoolExecutor(workers)
        self._open: weakref.WeakSet[Generator[Batch, None, None]] = weakref.WeakSet()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        """Return the batches of these samples, in order. The first `next` starts to decode."""
        batches = self._batches(samples, hashes, batch_size)
        self._open.add(batches)
        return batches

    def _batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Generator[Batch, None, None]:
        parts = (slice(at, at + batch_size) for at in range(0, len(samples), batch_size))
        device = self._format.device
        with closing(in_order(lambda part: self._decode(samples[part], hashes[part]), parts, 1, AHEAD)) as batches:
            for images, labels in batches:
                yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def close(self) -> None:
        for batches in list(self._open):
            batches.close()
        self._pool.shutdown()

    def _decode(self, samples: Integers, hashes: Hashes) -> Batch:
        """Decode a batch on the CPU."""
        size = self._format.image_size
        images = torch.empty(len(samples), 3, size, size, pin_memory=self._format.device.type == "cuda")
        out = images.numpy()

        def decode(part: slice) -> None:
            self._decoder(self._content, samples[part], hashes[part], out[part])

        step = -(-len(samples) // self._workers)
        list(self._pool.map(decode, [slice(at, at + step) for at in range(0, len(samples), step)]))
        return images, torch.from_numpy(self._labels[samples])


def _raw_decoder(file: Beton, batch_format: BatchFormat, augment: bool) -> Decode:
    """Return a decoder of raw images.

    Raises:
        DataError: If the images do not have the size of the format.

    """
    size, padding = batch_format.image_size, PADDING if augment else 0
    if file.raw_size() != (size, size):
        height, width = file.raw_size()
        raise DataError(file.path, f"its images have {height} x {width} pixels, expected {size} x {size}", ANOTHER)
    all_bytes = torch.arange(256, dtype=torch.uint8).expand(3, 1, -1)
    table = dataclasses.replace(batch_format, device=all_bytes.device).normaliser()(all_bytes).view(3, 256).numpy()

    def decode(content: NDArray[np.uint8], samples: Integers, hashes: Hashes, out: NDArray[np.float32]) -> None:
        tops, lefts = choose_padded_crops(hashes, padding)
        kernels.raw(
            content, file.places[samples], tops, lefts, choose_mirrored(hashes) & augment, padding, size, table, out
        )

    return decode


def _jpeg_decoder(file: Beton, batch_format: BatchFormat, augment: bool) -> Decode:
    file_shapes = np.stack((file.heights, file.widths), axis=1)
    mean, deviation = np.array(batch_format.mean), np.array(batch_format.deviation)
    factors, offsets = np.float32(1 / (255 * deviation)), np.float32(-mean / deviation)

    def decode(content: NDArray[np.uint8], samples: Integers, hashes: Hashes, out: NDArray[np.float32]) -> None:
        places, sizes, shapes = file.places[samples], file.sizes[samples], file_shapes[samples]
        boxes = random_resized_crops(hashes, *shapes.T) if augment else centre_crops(*shapes.T)
        flips = choose_mirrored(hashes) & augment
        results = kernels.jpeg(content, places, sizes, shapes, boxes, flips, factors, offsets, out)
        for b in np.flatnonzero(results):
            # libjpeg-turbo returns the same code for errors and for warnings, which intact files may cause. Pillow
            # raises only for errors.
            try:
                with Image.open(io.BytesIO(content[places[b] : places[b] + sizes[b]].tobytes())) as image:
                    pixels = np.array(image.convert("RGB"))
            except UNDECODABLE as error:
                raise DataError(file.path, f"image {samples[b]} cannot be decoded ({error})", AGAIN) from error
            kernels.resample(pixels, boxes[b], flips[b], factors, offsets, out[b])

    return decode
