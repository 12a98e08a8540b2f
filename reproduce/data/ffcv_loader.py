"""Batches from a `.beton` file through FFCV: memory-mapped, decoded ahead of time in a thread of their own.

FFCV is fast, but the batches that it makes depend on more than they should: its seed fixes the order alone (and seed 1
epoch 1 has the order of seed 2 epoch 0), augmentations draw from generators of their threads, an epoch can be entered
only at its beginning, and a batch is overwritten five batches later, while a pipeline still holds it.

Here FFCV is given our own order, and what it takes for the index of a sample is a row of two numbers: the index and the
sample's augmentation hash. So the hash arrives with the sample at our decoder, whatever the thread; and the decoder
writes into memory that belongs to the batch. From raw images come the batches of `InMemory`, bit for bit.

This module needs FFCV; import it only where it is used.
"""

import dataclasses
import io
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from reproduce.data import ffcv_kernels as kernels
from reproduce.data import ffcv_library as ffcv
from reproduce.data.beton import AGAIN, ANOTHER, RAW, UNDECODABLE, Beton
from reproduce.data.crops import Integers, centre_crops, mirrored, padded_crops, random_resized_crops
from reproduce.data.errors import DataError, check_labels
from reproduce.data.loader import PADDING, Batch, BatchFormat, Source
from reproduce.data.sample_hash import Hashes

BATCHES_AHEAD = 3

#: Reads samples [B] with their hashes [B] from the bytes of a file into float32 [B, 3, H, W].
Decode = Callable[[NDArray[np.uint8], Integers, Hashes, NDArray[np.float32]], None]


class FfcvFile(Source):
    """A `.beton` file, decoded by so many threads; the batches do not depend on their number.

    Args:
        path: the file.
        batch_format: of the batches.
        augment: whether raw images are cropped at random places as those of `InMemory`, and of JPEG files random boxes
            are resized and mirrored; otherwise of JPEG files the centred square of 224/256 of the shorter side.
        workers: threads.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: the file is damaged, or its images or labels are not those of the format.

    """

    def __init__(self, path: Path, batch_format: BatchFormat, *, augment: bool, workers: int = 1) -> None:
        file = Beton(path)
        check_labels(file.labels.tolist(), 0, batch_format.num_classes, path, ANOTHER)
        self.num_classes, self.samples = batch_format.num_classes, len(file)
        decoder = _raw_decoder if (file.modes == RAW).all() else _jpeg_decoder
        self._decoder = decoder(file, batch_format, augment)
        self._path, self._format = path, batch_format
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._workers = workers
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        """The batches of these samples, in order; FFCV begins to decode at the first `next`."""
        batches = self._batches(np.stack((samples.astype(np.uint64), hashes), axis=1), batch_size)
        self._open.add(batches)
        return batches

    def _batches(self, rows: NDArray[np.uint64], batch_size: int) -> Iterator[Batch]:
        with ffcv.uncompiled():
            loader = ffcv.Loader(
                str(self._path),
                batch_size,
                num_workers=1,  # threads of our own decode
                order=_Order(rows),
                drop_last=False,
                batches_ahead=BATCHES_AHEAD,
                pipelines={"image": [_ImageDecoder(self._decode)], "label": [_LabelDecoder()]},
                seed=0,  # of nothing; without one FFCV draws from numpy's global generator
            )
        epoch = iter(loader)
        device = self._format.device
        try:
            for images, labels in epoch:
                if isinstance(images, Exception):
                    raise images
                yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        finally:
            ffcv.close(epoch)

    def close(self) -> None:
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
                self._decoder(storage[0], samples[part], hashes[part], out[part])

            if self._pool is None:
                decode(slice(None))
            else:
                step = -(-len(rows) // self._workers)
                list(self._pool.map(decode, [slice(at, at + step) for at in range(0, len(rows), step)]))
        except Exception as error:
            return error
        return images


def _raw_decoder(file: Beton, batch_format: BatchFormat, augment: bool) -> Decode:
    """Decodes raw images of one size. Raises: DataError: theirs is another."""
    size, padding = batch_format.image_size, PADDING if augment else 0
    if file.raw_size() != (size, size):
        height, width = file.raw_size()
        raise DataError(file.path, f"its images have {height} x {width} pixels, expected {size} x {size}", ANOTHER)
    every = torch.arange(256, dtype=torch.uint8).expand(3, 1, -1)
    table = dataclasses.replace(batch_format, device=every.device).normaliser()(every).view(3, 256).numpy()

    def decode(content: NDArray[np.uint8], samples: Integers, hashes: Hashes, out: NDArray[np.float32]) -> None:
        tops, lefts = padded_crops(hashes, padding)
        kernels.raw(content, file.places[samples], tops, lefts, mirrored(hashes) & augment, padding, size, table, out)

    return decode


def _jpeg_decoder(file: Beton, batch_format: BatchFormat, augment: bool) -> Decode:
    file_shapes = np.stack((file.heights, file.widths), axis=1)
    mean, deviation = np.array(batch_format.mean), np.array(batch_format.deviation)
    factors, offsets = np.float32(1 / (255 * deviation)), np.float32(-mean / deviation)

    def decode(content: NDArray[np.uint8], samples: Integers, hashes: Hashes, out: NDArray[np.float32]) -> None:
        places, sizes, shapes = file.places[samples], file.sizes[samples], file_shapes[samples]
        boxes = random_resized_crops(hashes, *shapes.T) if augment else centre_crops(*shapes.T)
        flips = mirrored(hashes) & augment
        results = kernels.jpeg(content, places, sizes, shapes, boxes, flips, factors, offsets, out)
        for b in np.flatnonzero(results):
            # libjpeg-turbo says the same of an error and of a warning, which some good files deserve: Pillow decides.
            try:
                with Image.open(io.BytesIO(content[places[b] : places[b] + sizes[b]].tobytes())) as image:
                    pixels = np.array(image.convert("RGB"))
            except UNDECODABLE as error:
                raise DataError(file.path, f"image {samples[b]} cannot be decoded ({error})", AGAIN) from error
            kernels.resample(pixels, boxes[b], flips[b], factors, offsets, out[b])

    return decode


# --- what FFCV takes for its own: its classes have no types


class _Order(ffcv.TraversalOrder):
    """The rows that are to be delivered.

    The release takes no class of somebody else's as an order, but an object, which it then calls as if it were a class.
    """

    def __init__(self, rows: NDArray[np.uint64]) -> None:
        self._rows = rows

    def __call__(self, _loader: object) -> "_Order":
        return self

    def sample_order(self, _epoch: int) -> NDArray[np.uint64]:
        return self._rows


class _OurMemory:
    """Asks for none of FFCV's memory, which the next batches would overwrite."""

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        return previous_state, None


class _ImageDecoder(_OurMemory, ffcv.Decoder):
    """Hands over to a function of ours."""

    def __init__(self, decode: Callable[..., Tensor | Exception]) -> None:
        super().__init__()
        self._decode = decode

    def generate_code(self) -> Callable[..., Tensor | Exception]:
        return self._decode


class _LabelDecoder(_OurMemory, ffcv.LabelDecoder):
    def generate_code(self) -> Callable[..., Tensor]:
        def labels(rows: NDArray[np.uint64], _memory: None, metadata: Any, _storage: Any) -> Tensor:
            return torch.from_numpy(metadata[rows[:, 0]].astype(np.int64))

        return labels
