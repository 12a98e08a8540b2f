"""Download and read the binary version of CIFAR-10 and CIFAR-100 (Krizhevsky 2009).

A file is a sequence of records: a label byte and the pixels in planar RGB. A record of CIFAR-100 has two label bytes,
the coarse label and the fine one.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from reproduce.cells.catalogue import CIFAR10, CIFAR100, Dataset
from reproduce.data.errors import DataError, check_labels
from reproduce.data.small_images import FIX, PIXELS, SIDE, Batch, Layout, SmallImages

SITE = "https://www.cs.toronto.edu/~kriz"

LAYOUTS = {
    CIFAR10: Layout(
        {
            "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        },
        {"test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c"},
        ("cifar-10-batches-bin",),
    ),
    CIFAR100: Layout(
        {"train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"},
        {"test.bin": "8fb6623e830365ff53cf14adec797474f5478006"},
        ("cifar-100-binary",),
    ),
}
#: Archives at `SITE`: name and MD5.
ARCHIVES = {
    CIFAR10: ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    CIFAR100: ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}


def find(dataset: Dataset, source: Path) -> SmallImages:
    """Return the data set in `source`.

    Raises:
        DataError: If files are missing.

    """
    return SmallImages(dataset, source, LAYOUTS[dataset], partial(read_binary, dataset=dataset))


def read_binary(content: bytes, path: Path, *, dataset: Dataset) -> Batch:
    """Parse one file of the binary layout.

    Raises:
        DataError: If the file is truncated or a label is out of range.

    """
    label_bytes = 2 if dataset is CIFAR100 else 1
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        raise DataError(
            path,
            f"{len(content):,} bytes are not a whole number of records of {record} bytes: it is truncated or not a "
            f"file of {dataset.title}",
            FIX,
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1].astype(np.int64)
    check_labels(labels.tolist(), 0, dataset.num_classes, path, FIX)
    return Batch(records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE), labels)


def download(dataset: Dataset, target: Path) -> None:
    """Download the data set into `target`, with a progress bar on stderr.

    The checksum of the archive is verified. Partial files are deleted. An earlier, intact download is kept.

    Raises:
        DataError: If the download fails, the archive is not the official one, or an earlier download is damaged.

    """
    from torchvision.datasets.utils import download_and_extract_archive  # takes seconds to import

    (name,), (archive, md5) = LAYOUTS[dataset].folders, ARCHIVES[dataset]
    folder, url = target / name, f"{SITE}/{archive}"
    if folder.is_dir():
        try:
            problems = find(dataset, target).find_altered()
        except DataError as error:
            problems = [str(error)]
        if problems:
            raise DataError(folder, f"an earlier download is damaged ({'; '.join(problems)})", "Remove this folder")
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dataset.name}.", dir=target) as partial_folder:
        try:
            download_and_extract_archive(url, partial_folder, md5=md5)
        except (OSError, RuntimeError) as error:  # no network is an OSError, a wrong checksum a RuntimeError
            raise DataError(target, f"{url} could not be downloaded ({error})", dataset.how_to_get) from error
        try:
            (Path(partial_folder) / name).rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has finished the same download
                raise
