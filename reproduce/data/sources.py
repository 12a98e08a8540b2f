"""Open the data set and loader of a cell, after comparing the files with their manifest.

The files of a prepared data set are compared with their manifest before training. Data sets of up to `READ_WHOLE` bytes
are read and hashed completely, which takes seconds. Of ImageNet only existence and sizes are compared; `data check`
compares the contents. Image files that were only listed are compared in size whenever one is opened.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from reproduce.cells import catalogue
from reproduce.cells.catalogue import DEFAULT_ROOT, DIGITS, FFCV, IMAGENET, MEMORY, PYDOC, TORCHVISION
from reproduce.cells.kinds import TrainedCell
from reproduce.data import corpus, manifest
from reproduce.data.beton import ANOTHER, Beton, JpegFiles, RawImages
from reproduce.data.crops import Integers
from reproduce.data.errors import DataError, check_labels
from reproduce.data.loader import BatchFormat, Evaluation, InMemory, Loader, Source, hold_out
from reproduce.data.manifest import Manifest, read_list

READ_WHOLE = 8e9  # bytes
# Samples per evaluation batch. The size changes the logits only by rounding.
EVALUATION_BATCH = 512  # on a CPU, for text and images of up to 64 x 64 pixels
LARGEST_EVALUATION_BATCH = 2000  # on a GPU, where launching a small batch takes as long as launching a large one
LARGE_EVALUATION_BATCH = 64  # for larger images


class Data(NamedTuple):
    """Data that a cell is trained and tested on.

    Attributes:
        train: Batches of the training set.
        test: Batches of the test set, or of the held-out samples of the training set.
        provenance: Description of the data for the result, as plain values (`Manifest.provenance`).

    """

    train: Loader
    test: Evaluation
    provenance: dict[str, Any]


def open_data(cell: TrainedCell, device: torch.device, root: Path = DEFAULT_ROOT, workers: int = 1) -> Data:
    """Open the data of a cell.

    Args:
        cell: Cell that names data set, loader, augmentation, batch size and seed.
        device: Device of the batches.
        root: Folder of prepared data sets. Not used for data sets that a dependency includes.
        workers: Number of threads or processes that decode. The batches do not depend on it.

    Raises:
        DataError: If the data set is damaged or not prepared for this loader, or if the loader is not installed.

    """
    if cell.dataset == PYDOC.name:
        return _pydoc(cell, device)
    augment, large = cell.augmentation != "none", cell.dataset == IMAGENET.name
    tested = "train" if cell.held_out else "test"
    sized = partial(BatchFormat, image_size=cell.image_size, device=device)
    if cell.dataset == DIGITS.name:
        from reproduce.data.digits import digits  # scikit-learn takes seconds to import

        images, provenance = digits(cell.image_size), manifest.built_in(DIGITS.name)
        batch_format = sized(num_classes=DIGITS.num_classes, mean=images.mean, deviation=images.deviation)
        train: Source = InMemory(images.train, batch_format, augment=augment)
        test: Source = InMemory(getattr(images, tested), batch_format)
    else:
        folder = root.resolve() / cell.dataset
        prepared = _verify(folder, cell.loader)
        findings, provenance = prepared.findings, prepared.provenance()
        batch_format = sized(num_classes=findings.num_classes, mean=findings.mean, deviation=findings.deviation)
        train = _open(folder, prepared, "train", cell.loader, batch_format, augment, workers)
        # A test set of small images is held in memory, whatever the loader of the training set.
        test = _open(folder, prepared, tested, cell.loader if large else MEMORY, batch_format, False, workers)
    kept, held_out = hold_out(train.samples, cell.held_out) if cell.held_out else (None, None)
    size = LARGE_EVALUATION_BATCH if large else _evaluation_batch(cell.held_out or test.samples, device)
    return Data(_loader(train, cell, "prepare the whole data set", kept), Evaluation(test, size, held_out), provenance)


def _evaluation_batch(samples: int, device: torch.device) -> int:
    """Return the batch size for evaluating a test set of small images.

    On a GPU the size divides the number of samples where possible, so that all batches have the same shape.
    """
    if device.type != "cuda":
        return EVALUATION_BATCH
    sizes = range(min(samples, LARGEST_EVALUATION_BATCH), EVALUATION_BATCH, -1)
    return next((size for size in sizes if samples % size == 0), LARGEST_EVALUATION_BATCH)


def check(cell: TrainedCell, root: Path = DEFAULT_ROOT) -> None:
    """Check that `open_data` can succeed, without opening the data. Files are read at most once per process.

    Raises:
        DataError: If the data set is damaged or not prepared for this loader, or if the loader is not installed.

    """
    if catalogue.by_name(cell.dataset).built_in:
        return
    folder = root.resolve() / cell.dataset
    _verify(folder, cell.loader)
    if cell.loader == FFCV and not catalogue.ffcv_installed():
        raise DataError(folder, "the loader is ffcv, which is not installed", _other_loaders(folder))


def _other_loaders(folder: Path) -> str:
    others = " or ".join(name for name in catalogue.by_name(folder.name).loaders if name != FFCV)
    return f"Choose --loader {others}"


def _loader(source: Source, cell: TrainedCell, otherwise: str, chosen: Integers | None = None) -> Loader:
    try:
        return Loader(source, cell.batch_size, seed=cell.seed, chosen=chosen)
    except ValueError as error:
        raise DataError(Path(cell.dataset), str(error), f"Choose a smaller batch, or {otherwise}") from error


def _pydoc(cell: TrainedCell, device: torch.device) -> Data:
    """Open the text. Its provenance contains its SHA-256, the lengths of its parts and the unigram baseline."""
    from reproduce.data import text
    from reproduce.models.revroberta import IGNORED

    whole = corpus.pydoc()
    train, test = (text.Text(part, cell.image_size, device) for part in (whole.train, whole.test))
    loader, evaluation = _loader(train, cell, "shorter sequences"), Evaluation(test, EVALUATION_BATCH)
    hidden = torch.cat([targets[targets != IGNORED] for _, targets in evaluation])
    evaluation.samples = len(hidden)
    provenance = manifest.built_in(PYDOC.name) | {
        "files": {catalogue.SOURCE: whole.sha256},
        "bytes": [len(whole.train), len(whole.test)],
        "unigram": text.unigram(whole.train, hidden.cpu().numpy()),
    }
    return Data(loader, evaluation, provenance)


def _open(
    folder: Path, prepared: Manifest, split: str, loader: str, batch_format: BatchFormat, augment: bool, workers: int
) -> Source:
    beton = folder / f"{split}.beton"
    if loader == MEMORY:
        return InMemory(_raw_images(beton, _stamp(folder)), batch_format, augment=augment)
    if loader == TORCHVISION:
        from reproduce.data.torchvision_loader import ImageFiles  # takes seconds to import

        listed = folder / f"{split}.jsonl"
        files = read_list(listed)
        paths, labels = [Path(prepared.source, file.path) for file in files], [file.label for file in files]
        check_labels(labels, 0, batch_format.num_classes, listed, ANOTHER)
        return ImageFiles(
            JpegFiles(paths, labels, [file.bytes for file in files]), batch_format, augment=augment, workers=workers
        )
    try:
        from reproduce.data.ffcv_loader import FfcvFile
    except ImportError as error:
        raise DataError(folder, f"the loader is ffcv: {error}", _other_loaders(folder)) from error
    return FfcvFile(beton, batch_format, augment=augment, workers=workers)


# --- Caches for the many cells of a grid. They are invalidated when the data set is prepared again.

Stamp = tuple[int, int, int]


def _stamp(folder: Path) -> Stamp:
    """Return values that identify the manifest's file and change if the data set is prepared again."""
    status = (folder / manifest.NAME).stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _verify(folder: Path, loader: str) -> Manifest:
    """Return the manifest of a prepared data set after verifying its files and that the loader can read them."""
    name = folder.name
    if not manifest.is_in(folder):
        how = catalogue.DATASETS[name].how_to_get
        advice = f"Prepare it: {catalogue.how_to_prepare(folder)}; {how[0].lower()}{how[1:]}"
        raise DataError(folder, f"{name} is not prepared", advice)
    prepared = _verify_once(folder, _stamp(folder))
    if (obstacle := manifest.obstacle(folder, prepared, loader)) is not None:
        raise obstacle
    return prepared


@cache
def _verify_once(folder: Path, stamp: Stamp) -> Manifest:
    prepared = manifest.read(folder, folder.name)
    small = sum(file.bytes for file in prepared.files.values()) <= READ_WHOLE
    problems = manifest.problems(folder, prepared, contents=small)
    if problems:
        raise DataError(folder, "; ".join(problems), catalogue.advise_preparation(folder, prepared.source))
    return prepared


@cache
def _raw_images(beton: Path, stamp: Stamp) -> RawImages:
    return Beton(beton).raw()
