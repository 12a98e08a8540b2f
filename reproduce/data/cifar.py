"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in both layouts that are published, and their download.

The Python layout is pickled dicts of `data` uint8 [N, 3072] (planar RGB) and `labels` (of CIFAR-100 `fine_labels`); the
binary layout is records of label byte and pixels (of CIFAR-100 a coarse label, the fine one, and the pixels). The
images and their order are the same. Where both are there the binary one is read: it is no pickle.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reproduce.cells.catalogue import CIFAR10, CIFAR100, Dataset
from reproduce.data.errors import DataError
from reproduce.data.small_images import (
    FIX,
    PIXELS,
    SIDE,
    Batch,
    BatchFile,
    SmallImages,
    check_labels,
    read_pickled_batch,
)


class Layout(NamedTuple):
    """How one distribution of a data set looks: its folder, and the official checksum of each file."""

    folder: str
    train: dict[str, str]
    test: dict[str, str]
    pickled: bool


LAYOUTS = {
    CIFAR10: (
        Layout(
            "cifar-10-batches-bin",
            {
                "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
                "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
            },
            {"test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c"},
            pickled=False,
        ),
        Layout(
            "cifar-10-batches-py",
            {
                "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            },
            {"test_batch": "md5:40351d587109b95175f43aff81a1287e"},
            pickled=True,
        ),
    ),
    CIFAR100: (
        Layout(
            "cifar-100-binary",
            {"train.bin": "sha1:e207cd2e05b73b1393c74c7f5e7bea451d63e08e"},
            {"test.bin": "sha1:8fb6623e830365ff53cf14adec797474f5478006"},
            pickled=False,
        ),
        Layout(
            "cifar-100-python",
            {"train": "md5:16019d7e3df5f24257cddd939b257f8d"},
            {"test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc"},
            pickled=True,
        ),
    ),
}


def find(dataset: Dataset, source: Path) -> SmallImages:
    """The data set in `source`: either the folder that the archive makes, or the folder that it lies in.

    Raises:
        DataError: it is not there, or not all of it.

    """
    for layout in LAYOUTS[dataset]:
        for folder in (source / layout.folder, source):
            files = {**layout.train, **layout.test}
            missing = [name for name in files if not (folder / name).is_file()]
            if missing and (folder.name != layout.folder or not folder.is_dir()):
                continue
            if missing:
                raise DataError(
                    folder, f"{dataset.title}'s files {', '.join(missing)} are not here", dataset.how_to_get
                )
            read = partial(read_pickle if layout.pickled else read_binary, dataset=dataset)
            return SmallImages(
                dataset,
                [
                    BatchFile(folder / name, "train" if name in layout.train else "test", read, official)
                    for name, official in files.items()
                ],
            )
    wanted = " nor ".join(layout.folder for layout in LAYOUTS[dataset])
    raise DataError(source, f"{dataset.title} is not here: neither {wanted}", dataset.how_to_get)


def read_binary(content: bytes, path: Path, *, dataset: Dataset) -> Batch:
    """The contents of one file of the binary layout.

    Raises:
        DataError: it is truncated or its labels are out of range.

    """
    label_bytes = 2 if dataset is CIFAR100 else 1
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        raise DataError(
            path,
            f"{len(content):,} bytes are not a whole number of records of {record} bytes: it is truncated or no file "
            f"of {dataset.title}",
            FIX,
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    check_labels(labels.tolist(), 0, dataset.num_classes, path)
    return Batch(records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE), labels)


def read_pickle(content: bytes, path: Path, *, dataset: Dataset) -> Batch:
    """The contents of one file of the Python layout. Raises: DataError."""
    labels = "fine_labels" if dataset is CIFAR100 else "labels"
    return read_pickled_batch(content, path, labels=labels, first=0, num_classes=dataset.num_classes)


def download(dataset: Dataset, target: Path) -> None:
    """Get the Python layout into `target` with torchvision: a bar on stderr, the archive's checksum, no half files.

    Raises:
        DataError: no network, or what came is not the official archive.

    """
    from torchvision import datasets  # takes seconds to import

    published = datasets.CIFAR100 if dataset is CIFAR100 else datasets.CIFAR10
    folder = target / published.base_folder
    if folder.is_dir():
        try:
            find(dataset, target)
        except DataError as error:
            raise DataError(folder, f"an earlier download is not whole ({error})", "Remove this folder") from error
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dataset.name}.", dir=target) as partial_folder:
        try:
            datasets.utils.download_and_extract_archive(published.url, partial_folder, md5=published.tgz_md5)
        except (OSError, RuntimeError) as error:  # no network is an OSError, a wrong checksum a RuntimeError
            raise DataError(target, f"{published.url} could not be downloaded ({error})", dataset.how_to_get) from error
        try:
            (Path(partial_folder) / published.base_folder).rename(folder)
        except OSError:
            if not folder.is_dir():  # else somebody else was faster, with the same archive
                raise
