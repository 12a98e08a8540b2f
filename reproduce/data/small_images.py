"""Read published 32 x 32 images from batch files. Each file must fit into memory, but not all files together.

ImageNet32 has 4 GB of pixels. Reading all files and concatenating them would need twice that, and a damaged last file
would be found only at the end. Here the files are read twice, one at a time. The first pass verifies and counts
everything, and the second pass copies each file into the result.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reproduce.cells.catalogue import Dataset
from reproduce.data.beton import RawImages, write_beton
from reproduce.data.errors import DataError
from reproduce.data.manifest import SPLITS, Findings, Progress, Split, deviating_counts

SIDE = 32
PIXELS = 3 * SIDE * SIDE  # values of an image, in planar RGB
FIX = "Get the file again from the publisher of the data set"


class Batch(NamedTuple):
    """Contents of one file.

    Attributes:
        pixels: Images, uint8 [N, 3, 32, 32].
        labels: Labels from 0, int64 [N].
        mean: Mean image of the whole training set as stored in the file, [3072] in 0..255, or None.

    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    mean: NDArray[np.floating] | None = None


class Layout(NamedTuple):
    """Files of a published data set.

    Attributes:
        train: Names of the training files in the order of the samples, with their official SHA-1 (empty if none is
            published).
        test: The same for the test files.
        folders: Folders that the published archives unpack to.

    """

    train: dict[str, str]
    test: dict[str, str]
    folders: tuple[str, ...]


class SmallImages:
    """A published data set as a list of batch files.

    Args:
        dataset: Entry of the catalogue.
        source: Folder of the files, or of the folders that the archives unpack to.
        layout: Names and checksums of the files.
        read: Function that parses the bytes of a file, given its path for errors. It may raise DataError.

    Raises:
        DataError: If files are missing.

    """

    unit = "files"

    def __init__(self, dataset: Dataset, source: Path, layout: Layout, read: Callable[[bytes, Path], Batch]) -> None:
        self._dataset, self._read = dataset, read
        folders = (*(source / name for name in layout.folders), source)
        self._files = [
            (next((folder / name for folder in folders if (folder / name).is_file()), source / name), split, official)
            for split, names in (("train", layout.train), ("test", layout.test))
            for name, official in names.items()
        ]
        self.steps = len(self._files)
        if missing := [path.name for path, *_ in self._files if not path.is_file()]:
            problem = f"{dataset.title}'s files {', '.join(missing)} are not here"
            raise DataError(source, problem, dataset.how_to_get)

    def find_altered(self) -> list[str]:
        """Describe the files whose checksum is not the official one, in one sentence each."""
        return [
            sentence
            for path, _, official in self._files
            for sentence in _wrong_checksum(path.name, path.read_bytes(), official)
        ]

    def examine(self, progress: Progress) -> Findings:
        """Read and verify all files.

        Args:
            progress: Called with the number of files read since the last call.

        Raises:
            DataError: If a file is damaged or a label is out of range.

        """
        self._histograms = {split: np.zeros(self._dataset.num_classes, np.int64) for split in SPLITS}
        levels = np.zeros((3, 256), np.int64)  # histogram of the training set's pixels in each channel
        total = np.zeros(PIXELS, np.uint64)
        means: list[NDArray[np.floating]] = []
        wrong: list[str] = []
        for path, split, official in self._files:
            content = path.read_bytes()
            wrong += _wrong_checksum(path.name, content, official)
            batch = self._read(content, path)
            self._histograms[split] += np.bincount(batch.labels, minlength=self._dataset.num_classes)
            if split == "train":
                total += batch.pixels.reshape(-1, PIXELS).sum(0, dtype=np.uint64)
                levels += [np.bincount(batch.pixels[:, c].ravel(), minlength=256) for c in range(3)]
                means += [batch.mean] if batch.mean is not None else []
            progress(1)
        if wrong and len(wrong) < len(self._files):
            wrong[-1] += f" (the other {len(self._files) - len(wrong)} files are the official ones)"
        splits = {split: Split(int(count.sum()), tuple(count.tolist())) for split, count in self._histograms.items()}
        values, pixels = np.arange(256), splits["train"].samples * SIDE * SIDE
        mean = levels @ values / pixels  # the sums are exact
        deviation = np.sqrt(levels @ values**2 / pixels - mean**2)
        wrong += _count_deviations(self._dataset, splits) + _mean_deviation(means, total, splits["train"].samples)
        return Findings(
            splits=splits,
            mean=tuple((mean / 255).tolist()),
            deviation=tuple((deviation / 255).tolist()),
            deviations=tuple(wrong),
        )

    def bytes_to_write(self) -> int:
        return PIXELS * sum(int(histogram.sum()) for histogram in self._histograms.values())

    def write(self, folder: Path, progress: Progress) -> None:
        """Write `train.beton` and `test.beton` into `folder`.

        Args:
            folder: Folder for the files.
            progress: Called with the number of images written since the last call.

        Raises:
            DataError: If the files have changed since `examine`.
            OSError: If the disk is full.

        """
        for split in SPLITS:
            write_beton(folder / f"{split}.beton", self._gather(split), progress=progress)

    def _gather(self, split: str) -> RawImages:
        """Read a training or test set into one array without a second copy."""
        histogram = self._histograms[split]
        labels = np.empty(histogram.sum(), np.int64)
        pixels = np.empty((len(labels), 3, SIDE, SIDE), np.uint8)
        place = 0
        for path in (path for path, own_split, _ in self._files if own_split == split):
            batch = self._read(path.read_bytes(), path)
            part = slice(place, place := place + len(batch.labels))
            if place > len(labels):
                break
            pixels[part], labels[part] = batch.pixels, batch.labels
        if place != len(labels) or (np.bincount(labels, minlength=len(histogram)) != histogram).any():
            folder = self._files[0][0].parent
            raise DataError(folder, "its files changed while they were read", "Stop what writes there, and try again")
        return RawImages(pixels, labels)


def _wrong_checksum(name: str, content: bytes, official: str) -> list[str]:
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return [] if official in ("", digest) else [f"{name} has the SHA-1 {digest}, the official file {official}"]


def _count_deviations(dataset: Dataset, splits: dict[str, Split]) -> list[str]:
    deviations = deviating_counts(dataset, splits)
    for name in SPLITS:
        empty = [label for label, count in enumerate(splits[name].histogram) if count == 0]
        if empty:
            deviations.append(
                f"{len(empty)} of {dataset.num_classes} classes have no {name} image, the first is {empty[0]}"
            )
    return deviations


def _mean_deviation(means: list[NDArray[np.floating]], total: NDArray[np.uint64], samples: int) -> list[str]:
    """Compare the mean image of the training set with the one that the files contain.

    The comparison detects a difference of one grey level in one image.
    """
    sums = total.astype(np.float64)
    for mean in means:
        worst = float(np.abs(mean.astype(np.float64) * samples - sums).max())  # grey levels; the sums are integers
        if worst > 0.5 + float(np.finfo(mean.dtype).eps) * float(sums.max()):
            return [
                f"the mean image in the files is not that of their {samples:,} images (it differs by up to "
                f"{worst / samples:.3g} of 255 grey levels)"
            ]
    return []
