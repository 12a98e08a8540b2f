"""Batches from image files by Pillow, torchvision and a DataLoader: for ImageNet on a machine without FFCV.

torchvision's random transforms draw from the generator of whichever process has the sample, so that batches depend on
the number of workers, and the rest of an epoch cannot be had without its beginning. Here the sampler gives out, with
the index of a sample, its augmentation hash, and the box to crop follows from that.

A batch is one piece of work for one worker process, which returns bytes (a quarter of the floats' traffic). If a file
cannot be read it returns the error: raised there, it would arrive here as another one, without the path.

Batches come back as NumPy arrays through a pipe. A DataLoader sends tensors through shared memory; where that is full
(64 MB in a container, unless somebody says otherwise), a worker's thread prints a traceback and lives on, and the
parent waits for ever. A worker that is dead, or silent for `PATIENCE_SECONDS`, ends the run with an error.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional

from reproduce.data.beton import UNDECODABLE, ChangedImageError, JpegFiles, UnreadableImageError, rgb
from reproduce.data.crops import CENTRE, Integers, mirrored, random_resized_crops
from reproduce.data.errors import DataError
from reproduce.data.loader import Batch, BatchFormat, Source
from reproduce.data.sample_hash import Hashes

PATIENCE_SECONDS = 300.0  # for a batch, which takes seconds; a file server may be slow for a while
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


class ImageFiles(Source):
    """Image files, read anew for each batch, by so many processes (0: this one); the batches do not depend on that.

    To augment an image is to resize a random box of it, and to mirror it with probability 1/2; otherwise the shorter
    side is resized to 256/224 of the image size, and the centre cropped.
    """

    def __init__(self, files: JpegFiles, batch_format: BatchFormat, *, augment: bool, workers: int = 0) -> None:
        self.num_classes, self.samples = batch_format.num_classes, len(files.paths)
        self._images = _Images(files, batch_format.image_size, augment)
        self._device, self._workers = batch_format.device, workers
        self._normalised = batch_format.normaliser()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        rows = np.stack((samples.astype(np.uint64), hashes), axis=1)
        batches = DataLoader(
            self._images,
            batch_size=None,
            sampler=[rows[at : at + batch_size] for at in range(0, len(rows), batch_size)],
            collate_fn=_as_they_are,  # by default it makes tensors, which go through shared memory
            num_workers=self._workers,
            timeout=PATIENCE_SECONDS if self._workers else 0,
            multiprocessing_context="fork" if self._workers else None,  # from Python 3.14 on no longer the default
            worker_init_fn=_end_by_the_parent_alone,
            generator=torch.Generator(),  # of seeds that nobody uses; without one, torch's global generator moves on
        )
        for batch in self._received(batches):
            pixels, labels = (self._sent(array) for array in batch)
            yield self._normalised(pixels), labels

    def _sent(self, array: NDArray[Any]) -> Tensor:
        """The tensor on the device."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def _received(self, batches: DataLoader[Any]) -> Iterator[Arrays]:
        """What the workers send. Raises: DataError: one of them died, or sends nothing for `PATIENCE_SECONDS`."""
        try:
            for batch in batches:
                if isinstance(batch, DataError):
                    raise batch
                yield batch
        except RuntimeError as error:
            if not self._workers or "DataLoader" not in str(error):
                raise
            folder = self._images.first.parent
            raise DataError(
                folder,
                f"a process that decodes images died, or sent nothing for {PATIENCE_SECONDS:.0f} s "
                f"({str(error).splitlines()[0]})",
                "Check that the files can be read and that memory is left, and try fewer --data-workers",
            ) from error


def _as_they_are(batch: Any) -> Any:
    return batch


def _end_by_the_parent_alone(_: int) -> None:
    """Let a worker process end by a SIGTERM of its parent, and by nobody else's.

    Slurm sends it to all processes, and the parent, which would take the end of a worker for a fault, wants to save. A
    worker is forked: it has the parent's handler until this runs, and the parent's number.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class _Images(Dataset[Arrays | DataError]):
    """Whole batches: rows of index and hash [B, 2] -> uint8 [B, 3, size, size] and int64 [B], or the first error."""

    def __init__(self, files: JpegFiles, size: int, augment: bool) -> None:
        self._files, self._size, self._augment = files, size, augment

    @property
    def first(self) -> Path:
        return self._files.paths[0]

    def __getitem__(self, rows: NDArray[np.uint64]) -> Arrays | DataError:
        try:
            pixels = np.stack([self._read(int(sample), hash_) for sample, hash_ in rows])
        except DataError as error:
            return error
        return pixels, np.array([self._files.labels[int(sample)] for sample, _ in rows], np.int64)

    def _read(self, sample: int, hash_: np.uint64) -> NDArray[np.uint8]:
        path = self._files.paths[sample]
        try:
            with path.open("rb") as content:
                size = os.fstat(content.fileno()).st_size
                if self._files.sizes and size != self._files.sizes[sample]:
                    raise ChangedImageError(path, size, self._files.sizes[sample])
                with Image.open(content) as file:
                    image = rgb(file)
        except UNDECODABLE as error:
            raise UnreadableImageError(path, error) from error
        return np.ascontiguousarray(np.asarray(self._crop(image, np.array([hash_]))).transpose(2, 0, 1))

    def _crop(self, image: Image.Image, hashes: Hashes) -> Image.Image:
        cropped: Image.Image
        if self._augment:
            width, height = image.size
            [box] = random_resized_crops(hashes, np.array([height]), np.array([width])).tolist()
            cropped = functional.resized_crop(image, *box, [self._size, self._size])
            return functional.horizontal_flip(cropped) if mirrored(hashes)[0] else cropped
        image = functional.resize(image, [round(self._size / CENTRE)])  # of the shorter side
        cropped = functional.center_crop(image, [self._size, self._size])
        return cropped
