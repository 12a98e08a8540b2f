"""Read batches from a memory-mapped `.beton` file through FFCV, which decodes ahead of time in a separate thread.

FFCV's own batches are not reproducible enough for this suite:

- Its seed fixes only the order, and seed 1 epoch 1 has the same order as seed 2 epoch 0.
- Augmentations draw from per-thread generators.
- An epoch can only be started at its beginning.
- A batch is overwritten five batches later, while a pipeline may still hold it.

Here FFCV receives our order. Each entry of the order, which FFCV treats as a sample index, is a row of two numbers: the
sample index and the sample's augmentation hash. So our decoder receives the hash with the sample in any thread, and it
writes into memory that belongs to the batch. Batches of raw images are bitwise equal to those of `InMemory`.

This module imports FFCV. Import it only where it is used.
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
from reproduce.data.crops import Integers, centre_crops, choose_mirrored, choose_padded_crops, random_resized_crops
from reproduce.data.errors import DataError, check_labels
from reproduce.data.loader import PADDING, Batch, BatchFormat, Source
from reproduce.data.sample_hash import Hashes

BATCHES_AHEAD = 3

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
        self._path, self._format = path, batch_format
        self._pool = ThreadPoolExecutor(workers) if workers > 1 else None
        self._workers = workers
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        """Return the batches of these samples, in order. FFCV starts to decode at the first `next`."""
        batches = self._batches(np.stack((samples.astype(np.uint64), hashes), axis=1), batch_size)
        self._open.add(batches)
        return batches

    def _batches(self, rows: NDArray[np.uint64], batch_size: int) -> Iterator[Batch]:
        with ffcv.without_compiling():
            loader = ffcv.Loader(
                str(self._path),
                batch_size,
                num_workers=1,  # `_decode` uses separate threads
                order=_Order(rows),
                drop_last=False,
                batches_ahead=BATCHES_AHEAD,
                pipelines={"image": [_ImageDecoder(self._decode)], "label": [_LabelDecoder()]},
                seed=0,  # not used; without a seed, FFCV draws from numpy's global generator
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
        """Decode the images of a batch. Return errors: if one were raised, FFCV would wait forever for its thread."""
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


# --- Subclasses of FFCV's classes, which have no type annotations


class _Order(ffcv.TraversalOrder):
    """Deliver the given rows in their order.

    FFCV 1.0.2 does not accept a custom class as the order. It accepts an object and calls it as if it were a class.
    """

    def __init__(self, rows: NDArray[np.uint64]) -> None:
        self._rows = rows

    def __call__(self, _loader: object) -> "_Order":
        return self

    def sample_order(self, _epoch: int) -> NDArray[np.uint64]:
        return self._rows


class _OurMemory:
    """Request no memory from FFCV, because later batches would overwrite it."""

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        return previous_state, None


class _ImageDecoder(_OurMemory, ffcv.Decoder):
    """Decode images with a given function."""

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
