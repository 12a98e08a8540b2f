"""ImageNet: a folder of JPEG files for each class, below `train/` and `val/`.

Which files belong to the data set, in which order and with which label, is decided here once, as torchvision's
ImageFolder does it: classes in the order of their folders' names, files in the order of theirs. The .beton files and
the lists that torchvision's loader reads are made of the same files.

Every file is decoded before any is written; one that cannot be is named, with all others of its kind. What a flipped
bit does to a picture that can still be decoded shows in no way: ImageNet has no checksums of single files.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from reproduce.cells.catalogue import Dataset
from reproduce.data.beton import UNDECODABLE, JpegFiles, UnreadableImageError, in_order, write_beton
from reproduce.data.errors import DataError
from reproduce.data.manifest import SPLITS, Findings, ImageFile, Progress, Split, deviating_counts
from reproduce.records.storage import write_atomically
from reproduce.words import some

FOLDERS = {"train": "train", "test": "val"}


class ImageFolder:
    """A data set as files in class folders of `train/` and `val/`, decoded by so many threads.

    With `beton`, `write` copies the images into FFCV's format; without it, it lists them.

    Raises: DataError: a folder is missing, or a class is without images in one of them.
    """

    unit = "images"

    def __init__(self, dataset: Dataset, source: Path, *, beton: bool = True, workers: int = 1) -> None:
        self._dataset, self._source, self._beton, self._workers = dataset, source, beton, workers
        train, test = (_classes(source / folder, dataset) for folder in FOLDERS.values())
        for missing, here, lacking in (
            (set(train) - set(test), "train", "val"),
            (set(test) - set(train), "val", "train"),
        ):
            if missing:
                problem = f"{len(missing)} classes of {here}/ have no folder here: {some(sorted(missing))}"
                raise DataError(
                    source / lacking, problem, "A class needs a folder of that name, with images in it, in both"
                )
        self._classes = train
        self._files = {split: list(_files(source, folder, train)) for split, folder in FOLDERS.items()}
        self._splits = {split: self._split(split) for split in SPLITS}
        self.steps = sum(map(len, self._files.values()))

    def examine(self, progress: Progress) -> Findings:
        """Decode every file; `progress` is told of images. Raises: DataError: files cannot be read."""
        paths = [self._source / file.path for files in self._files.values() for file in files]
        unreadable = []
        for problem in in_order(_look, paths, self._workers):
            progress(1)
            unreadable += [problem] if problem else []
        if unreadable:
            problem = f"{len(unreadable)} of {len(paths):,} images cannot be read: {some(unreadable)}"
            raise DataError(self._source, problem, "Get them again")
        count, officially = len(self._classes), self._dataset.num_classes
        classes = [f"{count:,} classes, officially {officially:,}"] if count != officially else []
        assert self._dataset.mean is not None
        assert self._dataset.deviation is not None
        return Findings(
            splits=self._splits,
            mean=self._dataset.mean,
            deviation=self._dataset.deviation,
            deviations=(*classes, *deviating_counts(self._dataset, self._splits)),
        )

    def bytes_to_write(self) -> int:
        return sum(file.bytes for files in self._files.values() for file in files) if self._beton else 0

    def write(self, folder: Path, progress: Progress) -> None:
        """Write `train.jsonl` and `test.jsonl` and, if asked, the .beton files of what `examine` found into `folder`.

        Raises:
            UnreadableImageError: a file is no longer what was examined.
            OSError: likewise, or there is no room.

        """
        for split, files in self._files.items():
            if self._beton:
                images = JpegFiles([self._source / file.path for file in files], [file.label for file in files])
                write_beton(folder / f"{split}.beton", images, workers=self._workers, progress=progress)
            else:
                progress(len(files))
            lines = (json.dumps([file.label, file.bytes, file.path]) + "\n" for file in files)
            write_atomically(folder / f"{split}.jsonl", "".join(lines).encode())

    def _split(self, split: str) -> Split:
        counts = Counter(file.label for file in self._files[split])
        empty = [name for label, name in enumerate(self._classes) if not counts[label]]
        if empty:
            raise DataError(
                self._source / FOLDERS[split],
                f"{len(empty)} classes are without images: {some(empty)}",
                "Get the images of these classes again, or remove their folders from train/ and val/",
            )
        return Split(counts.total(), tuple(counts[label] for label in range(len(self._classes))))


def _classes(folder: Path, dataset: Dataset) -> list[str]:
    if not folder.is_dir():
        raise DataError(folder, "there is no such folder", dataset.how_to_get)
    here = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    classes = [path.name for path in here if path.is_dir()]
    if not classes:
        loose = sum(path.name.lower().endswith(IMG_EXTENSIONS) for path in here)
        raise DataError(folder, f"holds no class folders, but {loose:,} loose images", dataset.how_to_get)
    return classes


def _files(source: Path, folder: str, classes: Sequence[str]) -> Iterator[ImageFile]:
    """The images of all classes, in order; what has not the name of an image is passed over."""
    labels = {name: label for label, name in enumerate(classes)}
    for path, label in make_dataset(source / folder, labels, IMG_EXTENSIONS, allow_empty=True):
        yield ImageFile(path.removeprefix(f"{source}/"), label, os.stat(path).st_size)


def _look(path: Path) -> str:
    """What is wrong with an image that cannot be decoded; empty if it can."""
    try:
        with Image.open(path) as image:
            image.load()
    except UNDECODABLE as error:
        return f"{path} ({UnreadableImageError(path, error).reason})"
    return ""
