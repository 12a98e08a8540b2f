"""Read batches from image files with Pillow, torchvision and a DataLoader, for ImageNet on a machine without FFCV.

torchvision's random transforms draw from the generator of the worker process. Their batches depend on the number of
workers, and an epoch cannot be resumed in the middle. Here the sampler yields each sample's index together with its
augmentation hash, and the crop box follows from the hash.

Each batch is decoded by one worker process, which returns bytes (a quarter of the traffic of floats). If a file cannot
be read, the worker returns the error. If it raised the error, the DataLoader would replace it by another one without
the path.

Batches are sent as NumPy arrays through a pipe. A DataLoader would send tensors through shared memory. When that is
full (64 MB by default in a container), a thread of the worker prints a traceback, the worker survives, and the parent
waits forever. A worker that died, or that sent nothing for `PATIENCE_SECONDS`, ends the run with an error.
"""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional

from reproduce.data.beton import UNDECODABLE, JpegFiles, rgb, unreadable_image
from reproduce.data.crops import CENTRE, Integers, choose_mirrored, random_resized_crops
from reproduce.data.errors import DataError
from reproduce.data.loader import Batch, BatchFormat, Source
from reproduce.data.sample_hash import Hashes

PATIENCE_SECONDS = 300.0  # timeout for a batch, which normally takes seconds; a file server may be slow for a while
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


class ImageFiles(Source):
    """Image files that worker processes read for every batch.

    Augmentation resizes a random box of an image and mirrors it with probability 1/2. Without augmentation, the shorter
    side is resized to 256/224 of the image size and the centre is cropped.

    Args:
        files: Paths, labels and sizes of the images.
        batch_format: Shape and normalisation of the batches.
        augment: Whether to augment.
        workers: Number of worker processes (0: read in this process). The batches do not depend on it.

    """

    def __init__(self, files: JpegFiles, batch_format: BatchFormat, *, augment: bool, workers: int = 0) -> None:
        self.num_classes, self.samples = batch_format.num_classes, len(files.paths)
        self._files, self._images = files, _Images(files, batch_format.image_size, augment)
        self._device, self._workers = batch_format.device, workers
        self._normalised = batch_format.normaliser()

    def batches(self, samples: Integers, hashes: Hashes, batch_size: int) -> Iterator[Batch]:
        rows = np.stack((samples.astype(np.uint64), hashes), axis=1)
        batches = DataLoader(
            self._images,
            batch_size=None,
            sampler=[rows[at : at + batch_size] for at in range(0, len(rows), batch_size)],
            collate_fn=lambda batch: batch,  # the default makes tensors, which are sent through shared memory
            num_workers=self._workers,
            timeout=PATIENCE_SECONDS if self._workers else 0,
            multiprocessing_context="fork" if self._workers else None,  # no longer the default since Python 3.14
            worker_init_fn=_end_by_the_parent_alone,
            generator=torch.Generator(),  # unused; without one, the DataLoader draws from torch's global generator
        )
        for batch in self._receive(batches):
            pixels, labels = (self._sent(array) for array in batch)
            yield self._normalised(pixels), labels

    def _sent(self, array: NDArray[Any]) -> Tensor:
        """Copy an array to the device."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def _receive(self, batches: DataLoader[Any]) -> Iterator[Arrays]:
        """Yield the arrays that the workers send.

        Raises:
            DataError: If a worker could not read a file, died, or sent nothing for `PATIENCE_SECONDS`.

        """
        try:
            for batch in batches:
                if isinstance(batch, DataError):
                    raise batch
                yield batch
        except RuntimeError as error:
            if not self._workers or "DataLoader" not in str(error):
                raise
            raise DataError(
                self._files.paths[0].parent,
                f"a process that decodes images died, or sent nothing for {PATIENCE_SECONDS:.0f} s "
                f"({str(error).splitlines()[0]})",
                "Check that the files can be read and that enough memory is free, and try fewer --data-workers",
            ) from error


def _end_by_the_parent_alone(_: int) -> None:
    """Make a worker process ignore every SIGTERM that was not sent by its parent.

    Slurm sends SIGTERM to all processes. The parent then saves a checkpoint and would report the end of a worker as a
    failure. A forked worker inherits the parent's signal handler until this function runs.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class _Images(Dataset[Arrays | DataError]):
    """Map the rows (index, hash) of a batch, [B, 2], to pixels uint8 [B, 3, size, size] and labels int64 [B].

    If an image cannot be read, the item is the error.
    """

    def __init__(self, files: JpegFiles, size: int, augment: bool) -> None:
        self._files, self._size, self._augment = files, size, augment

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
                listed = self._files.sizes[sample] if self._files.sizes else size
                if size != listed:
                    problem = f"has {size:,} bytes, and had {listed:,} when the data set was prepared"
                    fix = "Restore the original files, or prepare the data set again"
                    raise DataError(path, f"{problem}: it was replaced or modified", fix)
                with Image.open(content) as file:
                    image = rgb(file)
        except UNDECODABLE as error:
            raise unreadable_image(path, error) from error
        return np.ascontiguousarray(np.asarray(self._crop(image, np.array([hash_]))).transpose(2, 0, 1))

    def _crop(self, image: Image.Image, hashes: Hashes) -> Image.Image:
        cropped: Image.Image
        if self._augment:
            width, height = image.size
            [box] = random_resized_crops(hashes, np.array([height]), np.array([width])).tolist()
            cropped = functional.resized_crop(image, *box, [self._size, self._size])
            return functional.horizontal_flip(cropped) if choose_mirrored(hashes)[0] else cropped
        image = functional.resize(image, [round(self._size / CENTRE)])  # length of the shorter side
        cropped = functional.center_crop(image, [self._size, self._size])
        return cropped
