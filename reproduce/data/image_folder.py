"""ImageNet: a folder of JPEG files for each class, below `train/` and `val/`.

Which files belong to the data set, in which order and with which label, is decided here once, as torchvision's
ImageFolder does it: classes in the order of their folders' names, files in the order of theirs. The .beton files and
the lists that torchvision's loader reads are made of the same files: one that was left out is left out of both.

A file that cannot be decoded is found here and named, with all others of its kind. What a flipped bit does to a picture
that can still be decoded shows in no way: ImageNet has no checksums of single files.
"""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from reproduce.cells.catalogue import Dataset
from reproduce.data.beton import JpegFiles, UnreadableImageError, write_beton
from reproduce.data.errors import DataError
from reproduce.data.manifest import SPLITS, Findings, Progress, Split
from reproduce.records.storage import write_atomically

FOLDERS = {"train": "train", "test": "val"}
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's list
NAMED = 10  # at most so many files in one message
AT_ONCE = 1000  # files given to the threads


@dataclass(frozen=True)
class ImageFile:
    """One file of a data set: its path below the source, its label from 0 on, and its size in bytes."""

    path: str
    label: int
    bytes: int


class ImageFolder:
    """A data set as files in class folders.

    Args:
        dataset: which one.
        source: folder that holds `train/` and `val/`.
        beton: whether `write` copies the images into FFCV's format; without it, it lists them.
        skip_unreadable: whether files that cannot be decoded are left out; otherwise they are an error.
        workers: threads that decode.

    Raises:
        DataError: a folder is missing, or empty, or the two have other classes.

    """

    unit = "images"

    def __init__(
        self, dataset: Dataset, source: Path, *, beton: bool = True, skip_unreadable: bool = False, workers: int = 1
    ) -> None:
        self._dataset, self._source = dataset, source
        self._beton, self._skip, self._workers = beton, skip_unreadable, workers
        classes = {split: _classes(source / folder, dataset) for split, folder in FOLDERS.items()}
        _check_same(source, classes["train"], classes["test"])
        self._classes = classes["train"]
        self._files = {split: list(_files(source, folder, self._classes)) for split, folder in FOLDERS.items()}

    def steps(self) -> int:
        """Images that `examine` goes through."""
        return sum(map(len, self._files.values()))

    def examine(self, progress: Progress) -> Findings:
        """Open every file, decode it if `write` is not going to; `progress` is told of images.

        Raises:
            DataError: files cannot be read and are not to be left out.

        """
        modes: Counter[str] = Counter()
        sides: list[int] = []
        unreadable: list[UnreadableImageError] = []
        for split in SPLITS:
            for result in self._map(lambda file: _look(self._source / file.path, decode=not self._beton), split):
                progress(1)
                if isinstance(result, UnreadableImageError):
                    unreadable.append(result)
                else:
                    modes[result[0]] += 1
                    sides += result[1]
        files = [file for split in SPLITS for file in self._files[split]]
        lines = "".join(f"{file.path}\t{file.bytes}\n" for file in files)
        found = ", ".join(f"{count:,} {mode}" for mode, count in modes.most_common())
        assert self._dataset.mean is not None
        assert self._dataset.deviation is not None
        findings = Findings(
            splits={split: self._split(split, ()) for split in SPLITS},
            mean=self._dataset.mean,
            deviation=self._dataset.deviation,
            fingerprint=hashlib.sha256(lines.encode()).hexdigest(),
            deviations=tuple(_deviations(self._dataset, len(self._classes), self._files)),
            notes=(f"{found}; sides of {min(sides, default=0)} to {max(sides, default=0)} pixels",),
        )
        return self._without(findings, unreadable)

    def bytes_to_write(self, findings: Findings) -> int:
        """How many, about."""
        return sum(file.bytes for files in self._files.values() for file in files) if self._beton else 0

    def write(self, folder: Path, findings: Findings, progress: Progress) -> Findings:
        """Write `train.jsonl` and `test.jsonl` and, if asked, the .beton files into `folder`.

        Returns:
            The findings, with the files left out that were seen to be unreadable only now.

        Raises:
            DataError: files cannot be read and are not to be left out.
            StorageFullError: no room.

        """
        unreadable: list[UnreadableImageError] = []
        for split in SPLITS:
            files = self._kept(split, findings.skipped)
            if not self._beton:
                progress(len(files))
                continue
            images = JpegFiles([self._source / file.path for file in files], [file.label for file in files])
            path, skip = folder / f"{split}.beton", unreadable.append
            write_beton(path, images, workers=self._workers, progress=progress, on_unreadable=skip)
        findings = self._without(findings, unreadable)
        for split in SPLITS:
            files = self._kept(split, findings.skipped)
            lines = (json.dumps([file.label, file.bytes, file.path]) + "\n" for file in files)
            write_atomically(folder / f"{split}.jsonl", "".join(lines).encode())
        return findings

    def _map(self, look: Callable[[ImageFile], Any], split: str) -> Iterator[Any]:
        files = self._files[split]
        with ThreadPoolExecutor(self._workers) as pool:
            for start in range(0, len(files), AT_ONCE):  # `map` keeps a note of every file that it is given
                yield from pool.map(look, files[start : start + AT_ONCE])

    def _without(self, findings: Findings, unreadable: Sequence[UnreadableImageError]) -> Findings:
        """The findings with these files left out too, if that is allowed."""
        if unreadable and not self._skip:
            raise DataError(
                self._source,
                f"{len(unreadable)} of {self.steps():,} images cannot be read: "
                f"{_named(f'{error.path} ({error.reason})' for error in unreadable)}",
                "Get them again, or leave such images out with --skip-unreadable",
            )
        skipped = (*findings.skipped, *(error.path.relative_to(self._source).as_posix() for error in unreadable))
        splits = {split: self._split(split, skipped) for split in SPLITS}
        return dataclasses.replace(findings, splits=splits, skipped=skipped)

    def _kept(self, split: str, skipped: Collection[str]) -> list[ImageFile]:
        gone = frozenset(skipped)
        return [file for file in self._files[split] if file.path not in gone]

    def _split(self, split: str, skipped: Collection[str]) -> Split:
        counts = Counter(file.label for file in self._kept(split, skipped))
        empty = [name for label, name in enumerate(self._classes) if not counts[label]]
        if empty:
            raise DataError(
                self._source / FOLDERS[split],
                f"{len(empty)} classes are without images: {_named(empty)}",
                "Get the images of these classes again, or remove their folders from train/ and val/",
            )
        return Split(counts.total(), tuple(counts[label] for label in range(len(self._classes))))


def read_list(path: Path) -> list[ImageFile]:
    """The files of a training or test set, as `write` listed them.

    Raises:
        DataError: the list is damaged.

    """
    try:
        with path.open(encoding="utf-8") as lines:
            return [ImageFile(name, label, size) for label, size, name in map(json.loads, lines)]
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise DataError(path, f"is damaged ({error})", "Prepare the data set again") from error


def changed(source: Path, files: Iterable[ImageFile]) -> list[str]:
    """Files below `source` that are no longer there or of another size, as sentences."""
    found = []
    for file in files:
        try:
            size = (source / file.path).stat().st_size
        except FileNotFoundError:
            found.append(f"{source / file.path} is missing")
            continue
        if size != file.bytes:
            found.append(f"{source / file.path} has {size:,} bytes, its record says {file.bytes:,}")
    return found


def _classes(folder: Path, dataset: Dataset) -> list[str]:
    """Names of the class folders, in order."""
    if not folder.is_dir():
        raise DataError(folder, "there is no such folder", dataset.how_to_get)
    with os.scandir(folder) as entries:
        here = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    classes = [entry.name for entry in here if entry.is_dir()]
    if not classes:
        loose = sum(entry.name.lower().endswith(EXTENSIONS) for entry in here)
        raise DataError(folder, f"holds no class folders, but {loose:,} loose images", dataset.how_to_get)
    return classes


def _check_same(source: Path, train: list[str], test: list[str]) -> None:
    for one, other, here, there in ((train, test, "train", "val"), (test, train, "val", "train")):
        missing = sorted(set(one) - set(other))
        if missing:
            raise DataError(
                source / there,
                f"{len(missing)} classes of {here}/ have no folder here: {_named(missing)}",
                "A class needs a folder of that name, with images in it, in both",
            )


def _files(source: Path, folder: str, classes: Sequence[str]) -> Iterator[ImageFile]:
    """Of all classes, in order; what has not the name of an image is passed over, as torchvision does."""
    for label, name in enumerate(classes):
        with os.scandir(source / folder / name) as entries:
            images = [entry for entry in entries if entry.name.lower().endswith(EXTENSIONS) and entry.is_file()]
        for entry in sorted(images, key=lambda entry: entry.name):
            yield ImageFile(f"{folder}/{name}/{entry.name}", label, entry.stat().st_size)


def _look(path: Path, *, decode: bool) -> tuple[str, tuple[int, int]] | UnreadableImageError:
    """Format and mode, and width and height, of an image."""
    try:
        with Image.open(path) as image:
            if decode:
                image.load()
            kind = image.mode if image.format == "JPEG" else f"{image.mode} ({image.format})"
            return kind, image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow raises all of these
        return UnreadableImageError(path, str(error) or type(error).__name__)


def _deviations(dataset: Dataset, classes: int, files: dict[str, list[ImageFile]]) -> Iterator[str]:
    if classes != dataset.num_classes:
        yield f"{classes:,} classes, officially {dataset.num_classes:,}"
    for split, official in (("train", dataset.train_samples), ("test", dataset.test_samples)):
        if len(files[split]) != official:
            yield f"{len(files[split]):,} {split} images, officially {official:,}"


def _named(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:NAMED]) + (f" and {len(every) - NAMED} more" if len(every) > NAMED else "")
