"""From a cell's words to its batches: which data set, which loader, and whether the files are what they are said to be.

The files of a prepared data set are compared with their record before anything is trained on them. What is small enough
is read whole (`READ_WHOLE`), seconds at most against hours of training; of ImageNet only names and sizes are looked at,
and `data check` reads the rest.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from reproduce.cells import catalogue
from reproduce.cells.catalogue import DEFAULT_ROOT, DIGITS, FFCV, IMAGENET, MEMORY, PYDOC
from reproduce.cells.kinds import TrainedCell
from reproduce.data import corpus, manifest
from reproduce.data.batch_format import BatchFormat
from reproduce.data.beton import Beton, JpegFiles
from reproduce.data.errors import DataError
from reproduce.data.image_folder import read_list
from reproduce.data.loader import EvaluationBatches, Images, Loader, MemoryLoader
from reproduce.data.manifest import Manifest

READ_WHOLE = 8e9  # bytes
EVALUATION_BATCH = 512  # samples of up to 64 x 64 pixels; without effect on the logits beyond rounding
LARGE_EVALUATION_BATCH = 64


class Evaluation(Protocol):
    """A test set in order, its batches as those of `Loader`; the last may be smaller.

    Attributes:
        samples: labels that count: one for each image, of text those that are not `IGNORED`.

    """

    samples: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Its batches, from the first."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Data(NamedTuple):
    """What a cell is trained and tested on.

    Attributes:
        train: its training batches.
        test: its test set.
        provenance: what a result has to say of them, as plain values: see `Manifest.provenance`.

    """

    train: Loader
    test: Evaluation
    provenance: dict[str, Any]


def open_data(cell: TrainedCell, device: torch.device, root: Path = DEFAULT_ROOT, workers: int = 1) -> Data:
    """The data of a cell, on `device`.

    Args:
        cell: names data set, loader, augmentation, batch size and seed.
        device: to train on.
        root: folder of prepared data sets; not looked at for those that come with a dependency.
        workers: threads or processes that decode; without effect on the batches.

    Raises:
        DataError: the data set is not prepared, or not for this loader, or damaged; or the loader cannot be had.

    """
    if cell.dataset == DIGITS.name:
        train, test = _digits(cell.image_size, device)
        return Data(_memory(train, cell), EvaluationBatches(test, EVALUATION_BATCH), manifest.built_in(DIGITS.name))
    if cell.dataset == PYDOC.name:
        return _pydoc(cell, device)
    folder = root.resolve() / cell.dataset
    found = _verified(folder)
    samples = found.findings.splits["train"].samples
    if cell.batch_size > samples:
        problem = f"batch_size {cell.batch_size} is larger than this training set ({samples} samples)"
        raise DataError(folder, problem, "Choose a smaller batch, or prepare the whole data set")
    open_ = _open_imagenet if cell.dataset == IMAGENET.name else _open_small
    return Data(*open_(cell, device, folder, found, workers), found.provenance())


def check(cell: TrainedCell, root: Path = DEFAULT_ROOT) -> None:
    """Whether `open_data` can be expected to succeed, at the cost of having read the files once.

    Raises:
        DataError: the data set is not prepared, or damaged; or the loader is not installed.

    """
    if catalogue.by_name(cell.dataset).built_in:
        return
    folder = root.resolve() / cell.dataset
    _verified(folder)
    if cell.loader == FFCV and not catalogue.ffcv_installed():
        raise DataError(folder, "the loader is ffcv, which is not installed", _other_loaders(cell))


def _other_loaders(cell: TrainedCell) -> str:
    others = " or ".join(name for name in catalogue.by_name(cell.dataset).loaders if name != FFCV)
    return f"Choose --loader {others}"


def _open_small(
    cell: TrainedCell, device: torch.device, folder: Path, found: Manifest, workers: int
) -> tuple[Loader, Evaluation]:
    """Whatever the loader of the training set, the test set lies in memory."""
    test = EvaluationBatches(_images(folder, "test", device), EVALUATION_BATCH)
    if cell.loader == MEMORY:
        return _memory(_images(folder, "train", device), cell), test
    return _ffcv(cell, device, folder, found, workers), test


def _open_imagenet(
    cell: TrainedCell, device: torch.device, folder: Path, found: Manifest, workers: int
) -> tuple[Loader, Evaluation]:
    batch_format = _batch_format(cell, device, found)
    if cell.loader == FFCV:
        train = _ffcv(cell, device, folder, found, workers)
        from reproduce.data.ffcv_loader import FfcvEvaluation

        return train, FfcvEvaluation(folder / "test.beton", LARGE_EVALUATION_BATCH, batch_format, workers=workers)
    from reproduce.data.torchvision_loader import TorchvisionEvaluation, TorchvisionLoader  # takes seconds to import

    files = _files(folder, "train", found)
    train = TorchvisionLoader(
        files, cell.batch_size, batch_format, seed=cell.seed, augmentation=cell.augmentation, workers=workers
    )
    test = _files(folder, "test", found)
    return train, TorchvisionEvaluation(test, LARGE_EVALUATION_BATCH, batch_format, workers=workers)


def _ffcv(cell: TrainedCell, device: torch.device, folder: Path, found: Manifest, workers: int) -> Loader:
    if not found.has_beton:
        fix = "Prepare it without --no-beton, or choose --loader torchvision"
        raise DataError(folder, "the loader is ffcv, but the images were only listed, not copied", fix)
    try:
        from reproduce.data.ffcv_loader import FfcvLoader
    except ImportError as error:
        raise DataError(folder, f"the loader is ffcv: {error}", _other_loaders(cell)) from error
    return FfcvLoader(
        folder / "train.beton",
        cell.batch_size,
        _batch_format(cell, device, found),
        seed=cell.seed,
        augmentation=cell.augmentation,
        workers=workers,
    )


def _pydoc(cell: TrainedCell, device: torch.device) -> Data:
    """Text; its provenance has its hash, how long its parts are, and what the frequencies of bytes alone can do."""
    from reproduce.data import text

    whole = corpus.pydoc()
    try:
        train = text.TextLoader(whole.train, cell.image_size, cell.batch_size, seed=cell.seed, device=device)
        test = text.TextEvaluation(whole.test, cell.image_size, EVALUATION_BATCH, device)
    except ValueError as error:
        raise DataError(Path(PYDOC.name), str(error), "Choose a smaller batch, or shorter sequences") from error
    provenance = manifest.built_in(PYDOC.name) | {
        "files": {catalogue.SOURCE: whole.sha256},
        "bytes": [len(whole.train), len(whole.test)],
        "unigram": text.unigram(whole.train, test.hidden())._asdict(),
    }
    return Data(train, test, provenance)


def _memory(images: Images, cell: TrainedCell) -> MemoryLoader:
    return MemoryLoader(images, cell.batch_size, seed=cell.seed, flip_crop=cell.augmentation == "flip_crop")


def _batch_format(cell: TrainedCell, device: torch.device, found: Manifest) -> BatchFormat:
    return BatchFormat(
        num_classes=found.findings.num_classes,
        image_size=cell.image_size,
        mean=found.findings.mean,
        deviation=found.findings.deviation,
        device=device,
    )


def _files(folder: Path, split: str, found: Manifest) -> JpegFiles:
    listed = read_list(folder / f"{split}.jsonl")
    return JpegFiles([Path(found.source) / file.path for file in listed], [file.label for file in listed])


# --- read once a process, since a grid has many cells; anew if the data set was, meanwhile

Stamp = tuple[int, int, int]


def _stamp(folder: Path) -> Stamp:
    """Of a manifest: another one if the data set was made anew."""
    found = (folder / manifest.NAME).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _verified(folder: Path) -> Manifest:
    """The manifest of a prepared data set whose files are those that it records."""
    name = folder.name
    if not (folder / manifest.NAME).exists():
        how = catalogue.DATASETS[name].how_to_get
        raise DataError(folder, f"{name} is not prepared", f"{catalogue.how_to_prepare(folder)}; {how}")
    return _verified_once(folder, _stamp(folder))


@cache
def _verified_once(folder: Path, stamp: Stamp) -> Manifest:
    name = folder.name
    found = manifest.read(folder)
    if found.dataset != name:
        raise DataError(folder, f"holds {found.dataset}", catalogue.again(folder))
    small = sum(file.bytes for file in found.files.values()) <= READ_WHOLE
    problems = manifest.problems(folder, found, contents=small)
    if problems:
        raise DataError(folder, "; ".join(problems), catalogue.again(folder))
    if not found.has_beton and not Path(found.source).is_dir():
        raise DataError(
            folder,
            f"its images were only listed, and the folder in which they lay, {found.source}, is not there",
            f"Bring it back, or name another one: {catalogue.again(folder)} --source DIR",
        )
    return found


def _images(folder: Path, split: str, device: torch.device) -> Images:
    return _images_once(folder, _stamp(folder), split, device)


@lru_cache(maxsize=2)  # of the data set that was asked for last, training and test set: they lie on the device
def _images_once(folder: Path, stamp: Stamp, split: str, device: torch.device) -> Images:
    found = _verified_once(folder, stamp).findings
    raw = Beton(folder / f"{split}.beton").raw()
    pixels, labels = torch.from_numpy(raw.pixels), torch.from_numpy(raw.labels)
    return Images(pixels, labels, found.num_classes, found.mean, found.deviation).to(device)


@cache
def _digits(image_size: int, device: torch.device) -> tuple[Images, Images]:
    from reproduce.data.digits import digits  # scikit-learn takes seconds to import

    train, test = digits(image_size)
    return train.to(device), test.to(device)
