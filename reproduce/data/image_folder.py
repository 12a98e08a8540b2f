"""Read ImageNet from one folder of JPEG files per class, below `train/` and `val/`.

This module decides which files belong to the data set, their order and their labels. It uses the rules of torchvision's
ImageFolder: classes in the order of their folders' names, files in the order of theirs. The .beton files and the lists
for torchvision's loader contain the same files.

No folder and no linked file is read twice. A link back into the data set would repeat a class, or bring training images
into the test set. Files without an image suffix are skipped and counted.

Every file is decoded before any is written, and an error lists all files that cannot be decoded. A flipped bit in an
image that can still be decoded is not detected, because ImageNet has no checksums of single files.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from reproduce.cells.catalogue import Dataset
from reproduce.data.beton import UNDECODABLE, JpegFiles, in_order, reason_of, rgb, write_beton
from reproduce.data.errors import DataError
from reproduce.data.manifest import SPLITS, Findings, ImageFile, Progress, Split, deviating_counts
from reproduce.records.reading import printable
from reproduce.records.storage import write_atomically
from reproduce.text import count, some

FOLDERS = {"train": "train", "test": "val"}
LISTED = 100  # number of unreadable images that the error names; there may be a million


class ImageFolder:
    """A published data set as files in class folders of `train/` and `val/`.

    Args:
        dataset: Entry of the catalogue.
        source: Folder that contains `train/` and `val/`.
        beton: Whether `write` copies the images into FFCV's format. Otherwise it only lists the files.
        workers: Number of threads that decode.

    Raises:
        DataError: If a folder is missing, or if a class has no images in one of them.

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
                names = some([name if name.isascii() else f"{name} ({name!a})" for name in sorted(missing)])
                problem = f"{len(missing)} classes of {here}/ have no folder here: {names}"
                raise DataError(
                    source / lacking, problem, "Both train/ and val/ need a folder with images for every class"
                )
        self._classes = train
        walk = _FolderWalk(source)
        self._files = {split: list(walk.files(folder, train)) for split, folder in FOLDERS.items()}
        self._passed_over = walk.passed_over
        self._splits = {split: self._split(split) for split in SPLITS}
        self.steps = sum(map(len, self._files.values()))

    def examine(self, progress: Progress) -> Findings:
        """Decode every file and count the images.

        Args:
            progress: Called with the number of images decoded since the last call.

        Raises:
            DataError: If files cannot be decoded.

        """
        paths = [self._source / file.path for files in self._files.values() for file in files]
        unreadable, moving = [], 0
        for problem, frames in in_order(_look, paths, self._workers):
            progress(1)
            unreadable += [problem] if problem else []
            moving += frames > 1
        if unreadable:
            problem = f"{len(unreadable)} of {len(paths):,} images cannot be read: {some(unreadable, LISTED)}"
            raise DataError(self._source, problem, "Get them again")
        here, officially = len(self._classes), self._dataset.num_classes
        classes = [f"{here:,} classes, officially {officially:,}"] if here != officially else []
        assert self._dataset.mean is not None
        assert self._dataset.deviation is not None
        return Findings(
            splits=self._splits,
            mean=self._dataset.mean,
            deviation=self._dataset.deviation,
            deviations=(*classes, *deviating_counts(self._dataset, self._splits)),
            notes=self._notes(moving),
        )

    def _notes(self, moving: int) -> tuple[str, ...]:
        """Describe what was skipped. `moving` is the number of images with several frames."""
        kinds = ", ".join(f"{kind or 'no suffix'} ({number})" for kind, number in sorted(self._passed_over.items()))
        passed = [f"{count(self._passed_over.total(), 'file')} passed over: {kinds}"] if kinds else []
        first = [f"{count(moving, 'image')} of several frames: the first frame is used"] if moving else []
        return (*passed, *first)

    def bytes_to_write(self) -> int:
        return sum(file.bytes for files in self._files.values() for file in files) if self._beton else 0

    def write(self, folder: Path, progress: Progress) -> None:
        """Write `train.jsonl` and `test.jsonl` and, with `beton`, the .beton files into `folder`.

        Args:
            folder: Folder for the files.
            progress: Called with the number of images written since the last call.

        Raises:
            DataError: If a file has become unreadable since `examine`.
            OSError: If a file has disappeared since `examine`, or if the disk is full.

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
        raise DataError(folder, f"contains no class folders, but {loose:,} loose images", dataset.how_to_get)
    return classes


class _FolderWalk:
    """Find image files in torchvision's order and detect folders and files that links repeat.

    torchvision's `make_dataset` does not detect them, follows a link to a parent folder many times, and skips folders
    that it cannot read.

    Attributes:
        passed_over: Number of files without an image suffix, by suffix. Hidden files are not counted.

    """

    def __init__(self, source: Path) -> None:
        self.passed_over: Counter[str] = Counter()
        self._source = source
        self._found: dict[str, str] = {}  # path without links -> path as found

    def files(self, folder: str, classes: Sequence[str]) -> Iterator[ImageFile]:
        """Yield the images of all classes of a folder, in order.

        Raises:
            DataError: If an image occurs twice or is not a regular file.

        """
        for entry in os.scandir(self._source / folder):
            if entry.is_file():
                self._pass_over(entry.name)
        for label, name in enumerate(classes):
            for path in self._paths(self._source / folder / name):
                yield ImageFile(path.removeprefix(f"{self._source}/"), label, self._size(path))

    def _paths(self, top: Path) -> Iterator[str]:
        found: list[tuple[str, list[str]]] = []

        def stop(error: OSError) -> None:
            raise DataError(Path(str(error.filename)), f"cannot be read ({error.strerror})", "Let this user read it")

        for place, _, names in os.walk(top, onerror=stop, followlinks=True):
            self._check_new(place, "folder")
            found.append((place, names))
        for place, names in sorted(found):
            for name in sorted(names):
                if name.lower().endswith(IMG_EXTENSIONS):
                    yield os.path.join(place, name)
                else:
                    self._pass_over(name)

    def _pass_over(self, name: str) -> None:
        if not name.startswith("."):
            self.passed_over[printable(Path(name).suffix.lower())] += 1

    def _size(self, path: str) -> int:
        """Return the size of an image file in bytes.

        Raises:
            DataError: If the path is not a regular file, or if it was found before.

        """
        try:
            status = os.stat(path)
        except OSError as error:
            raise DataError(
                Path(path), f"cannot be read ({error.strerror})", "Get the file again, or remove the link"
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError(Path(path), "has an image suffix but is not a regular file", "Remove it")
        self._check_new(path, "image")
        return status.st_size

    def _check_new(self, path: str, kind: str) -> None:
        """Raise DataError if a folder or an image was found before under another path."""
        earlier = self._found.setdefault(os.path.realpath(path), path)
        if earlier != path:
            fix = "Remove the link, which repeats images of the data set"
            raise DataError(Path(path), f"is the same {kind} as {earlier}, one of them through a link", fix)


def _look(path: Path) -> tuple[str, int]:
    """Decode an image. Return the problem (empty if the loaders can decode it) and the number of frames."""
    try:
        with Image.open(path) as image:
            rgb(image)
            return "", getattr(image, "n_frames", 1)
    except UNDECODABLE as error:
        return f"{path} ({reason_of(error)})", 1
