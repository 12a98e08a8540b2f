"""Batches from a `.beton` file through FFCV: memory-mapped, decoded ahead of time in a thread of their own.

FFCV is fast, but the batches that it makes depend on more than they should: its seed fixes the order alone (and seed 1
epoch 1 has the order of seed 2 epoch 0), augmentations draw from generators of their threads, an epoch can be entered
only at its beginning, and a batch is overwritten five batches later, while a pipeline still holds it.

Here FFCV is given our own order, and what it takes for the index of a sample is a row of two numbers: the index and the
sample's augmentation hash. So the hash arrives with the sample at our decoder, whatever the thread and the epoch, even
if two epochs are read at once; and the decoder writes into memory that belongs to the batch. From raw images come the
batches of `MemoryLoader`, bit for bit.

This module needs FFCV; import it only where it is used.
"""

import io
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from reproduce.data import ffcv_kernels as kernels
from reproduce.data import ffcv_library as ffcv
from reproduce.data.batch_format import BatchFormat
from reproduce.data.beton import AGAIN, RAW, UNDECODABLE, Beton
from reproduce.data.crops import Integers, centre_crops, mirrored, padded_crops, random_resized_crops
from reproduce.data.errors import DataError
from reproduce.data.loader import PADDING, batch_numbers
from reproduce.data.sample_hash import AUGMENTATION, Hashes, sample_hashes, sample_order

BATCHES_AHEAD = 3

Bytes = NDArray[np.uint8]
Pixels = NDArray[np.float32]


class FfcvLoader:
    """Shuffled training batches from a `.beton` file; an epoch's last, incomplete batch is left out.

    Args:
        path: the file.
        batch_size: samples of a batch.
        batch_format: of the batches.
        seed: of order and augmentation.
        augmentation: `none`; for raw images `flip_crop`; for JPEG files `random_resized_crop`.
        workers: threads that decode; the batches do not depend on it.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file is damaged, or its images or labels are not those of the format.
        ValueError: the augmentation is not one for such images, or there are fewer samples than a batch has.

    """

    name = "ffcv"

    def __init__(
        self,
        path: Path,
        batch_size: int,
        batch_format: BatchFormat,
        *,
        seed: int,
        augmentation: str,
        workers: int = 1,
    ) -> None:
        self._source = _Source(path, batch_size, batch_format, augmentation, workers)
        self._seed = seed
        self.num_classes = batch_format.num_classes
        self.samples = self._source.samples
        self.batch_size = batch_size
        self.batches = self.samples // batch_size
        if self.batches == 0:
            raise ValueError(f"batch_size {batch_size} is larger than the data set ({self.samples} samples)")

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loader`; on the format's device.

        Raises:
            DataError: while iterating: an image cannot be decoded.

        """
        order = sample_order(self._seed, epoch, self.samples)
        numbers = list(batch_numbers(self.batches, start, step))
        chosen = order[: self.batches * self.batch_size].reshape(self.batches, -1)[numbers].ravel()
        return self._source.batches(chosen, sample_hashes(self._seed, epoch, AUGMENTATION, self.samples)[chosen])

    def close(self) -> None:
        """End all threads, also those of epochs that were left before their end."""
        self._source.close()


class FfcvEvaluation:
    """The whole of a `.beton` file in order, without augmentation; the last batch may be smaller.

    JPEG files are cropped to the centred square of 224/256 of the shorter side, and resized. Args and Raises: as
    `FfcvLoader`.
    """

    def __init__(self, path: Path, batch_size: int, batch_format: BatchFormat, *, workers: int = 1) -> None:
        self._source = _Source(path, batch_size, batch_format, "none", workers)
        self.samples = self._source.samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._source.batches(np.arange(self.samples), np.zeros(self.samples, np.uint64))

    def close(self) -> None:
        """End all threads."""
        self._source.close()


class _Source:
    """Batches of any samples of a file, each with its hash."""

    def __init__(self, path: Path, batch_size: int, batch_format: BatchFormat, augmentation: str, workers: int) -> None:
        file = Beton(path)
        wrong = np.flatnonzero((file.labels < 0) | (file.labels >= batch_format.num_classes))
        if len(wrong):
            raise DataError(
                path,
                f"image {wrong[0]} has the label {file.labels[wrong[0]]}, expected 0..{batch_format.num_classes - 1} "
                f"({len(wrong)} such labels)",
                "Give the file of another data set, or prepare this one again",
            )
        self.samples = len(file)
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._workers = workers
        self._format = batch_format
        self._images = _images(file, batch_format, augmentation)
        self._order = _Order(self.samples)
        with ffcv.uncompiled():
            self._loader = ffcv.Loader(
                str(path),
                batch_size,
                num_workers=1,  # threads of our own decode
                order=self._order,
                drop_last=False,
                batches_ahead=BATCHES_AHEAD,
                pipelines={"image": [_ImageDecoder(self._decode)], "label": [_LabelDecoder()]},
                seed=0,  # of nothing; without one FFCV draws from numpy's global generator
            )
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def batches(self, samples: Integers, hashes: Hashes) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of these samples in this order. FFCV begins to decode at the first `next`."""
        rows = np.stack((samples.astype(np.uint64), hashes), axis=1)
        batches = self._batches(rows)
        self._open.add(batches)
        return batches

    def _batches(self, rows: NDArray[np.uint64]) -> Iterator[tuple[Tensor, Tensor]]:
        self._order.rows = rows
        epoch = iter(self._loader)
        device = self._format.device
        try:
            for images, labels in epoch:
                if isinstance(images, Exception):
                    raise images
                yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        finally:
            ffcv.close(epoch)

    def close(self) -> None:
        """End the epochs under way, and all threads."""
        for batches in list(self._open):
            batches.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _decode(self, rows: NDArray[np.uint64], _memory: None, _metadata: Any, storage: Any) -> Tensor | Exception:
        """The images of a batch, or what went wrong: an exception would end FFCV's thread but not the wait for it."""
        try:
            size = self._format.image_size
            images = torch.empty(len(rows), 3, size, size, pin_memory=self._format.device.type == "cuda")
            samples, hashes, out = rows[:, 0].astype(np.int64), rows[:, 1], images.numpy()

            def decode(part: slice) -> None:
                self._images(storage[0], samples[part], hashes[part], out[part])

            if self._pool is None:
                decode(slice(None))
            else:
                step = -(-len(rows) // self._workers)
                list(self._pool.map(decode, [slice(at, at + step) for at in range(0, len(rows), step)]))
        except Exception as error:
            return error
        return images


class _Decode(Protocol):
    """Reads samples from the bytes of a file into out float32 [B, 3, H, W]."""

    def __call__(self, content: Bytes, samples: Integers, hashes: Hashes, out: Pixels) -> None: ...


def _images(file: Beton, batch_format: BatchFormat, augmentation: str) -> _Decode:
    """What decodes the images of `file`. Raises: as `FfcvLoader`."""
    raw = bool((file.modes == RAW).all())
    known = ("none", "flip_crop") if raw else ("none", "random_resized_crop")
    if augmentation not in known:
        raise ValueError(
            f"{file.path} holds {'raw images' if raw else 'JPEG files'}: the augmentation is one of {known}, "
            f"got {augmentation!r}"
        )
    if not raw:
        return _JpegImages(file, batch_format, random=augmentation != "none")
    size = batch_format.image_size
    if file.raw_size() != (size, size):
        raise DataError(
            file.path,
            f"its images have {file.raw_size()[0]} x {file.raw_size()[1]} pixels, expected {size} x {size}",
            "Give the file of another data set, or prepare this one again",
        )
    return _RawImages(file, batch_format, random=augmentation != "none")


class _RawImages:
    """Raw images of one size; if `random`, cropped after padding and mirrored."""

    def __init__(self, file: Beton, batch_format: BatchFormat, *, random: bool) -> None:
        self._places, self._size, self._table = file.places, batch_format.image_size, batch_format.table()
        self._padding = PADDING if random else 0
        self._random = random

    def __call__(self, content: Bytes, samples: Integers, hashes: Hashes, out: Pixels) -> None:
        tops, lefts = padded_crops(hashes, self._padding)
        flips = mirrored(hashes) & self._random
        kernels.raw(content, self._places[samples], tops, lefts, flips, self._padding, self._size, self._table, out)


class _JpegImages:
    """JPEG files; if `random`, a random box is resized and mirrored, else the centre is resized."""

    def __init__(self, file: Beton, batch_format: BatchFormat, *, random: bool) -> None:
        self._file, self._random = file, random
        self._shapes = np.stack((file.heights, file.widths), axis=1)
        mean, deviation = np.array(batch_format.mean), np.array(batch_format.deviation)
        self._factors, self._offsets = np.float32(1 / (255 * deviation)), np.float32(-mean / deviation)

    def __call__(self, content: Bytes, samples: Integers, hashes: Hashes, out: Pixels) -> None:
        places, sizes, shapes = self._file.places[samples], self._file.sizes[samples], self._shapes[samples]
        boxes = random_resized_crops(hashes, *shapes.T) if self._random else centre_crops(*shapes.T)
        flips = mirrored(hashes) & self._random
        results = kernels.jpeg(content, places, sizes, shapes, boxes, flips, self._factors, self._offsets, out)
        for b in np.flatnonzero(results):
            # libjpeg-turbo says the same of an error and of a warning, which some good files deserve: Pillow decides.
            pixels = self._decoded(int(samples[b]), content[places[b] : places[b] + sizes[b]].tobytes())
            kernels.resample(pixels, boxes[b], flips[b], self._factors, self._offsets, out[b])

    def _decoded(self, sample: int, data: bytes) -> Bytes:
        try:
            with Image.open(io.BytesIO(data)) as image:
                return np.array(image.convert("RGB"))
        except UNDECODABLE as error:
            raise DataError(self._file.path, f"image {sample} cannot be decoded ({error})", AGAIN) from error


# --- what FFCV takes for its own: its classes have no types


class _Order(ffcv.TraversalOrder):
    """The rows that are to be delivered: set before each epoch.

    The release takes no class of somebody else's as an order, but an object, which it then calls as if it were a class.
    """

    def __init__(self, samples: int) -> None:
        self.rows = np.broadcast_to(np.zeros((), np.uint64), (samples, 2))  # FFCV asks how many there are at most

    def __call__(self, _loader: object) -> "_Order":
        return self

    def sample_order(self, _epoch: int) -> NDArray[np.uint64]:
        return self.rows


class _ImageDecoder(ffcv.Decoder):
    """Hands over to a function of ours; asks for none of FFCV's memory, which the next batches would overwrite."""

    def __init__(self, decode: Callable[..., Tensor | Exception]) -> None:
        super().__init__()
        self._decode = decode

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        return previous_state, None

    def generate_code(self) -> Callable[..., Tensor | Exception]:
        return self._decode


class _LabelDecoder(ffcv.LabelDecoder):
    """Likewise for labels."""

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        return previous_state, None

    def generate_code(self) -> Callable[..., Tensor]:
        def labels(rows: NDArray[np.uint64], _memory: None, metadata: Any, _storage: Any) -> Tensor:
            return torch.from_numpy(metadata[rows[:, 0]].astype(np.int64))

        return labels
