"""ImageNet32 as published: pickled batches (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819).

`train_data_batch_1` to `train_data_batch_10` and `val_data`, each a pickled dict of `data` uint8 [N, 3072] (planar RGB)
and `labels`, a list of 1..1000; the training files hold `mean` too, the mean image of the whole training set, which
serves as a checksum here: none is published.
"""

from pathlib import Path

from reproduce.cells.catalogue import IMAGENET32
from reproduce.data.errors import DataError
from reproduce.data.small_images import Batch, BatchFile, SmallImages, read_pickled_batch

TRAIN = [f"train_data_batch_{number}" for number in range(1, 11)]
TEST = "val_data"


def find(source: Path) -> SmallImages:
    """The batches in `source`, or in the folders `Imagenet32_train` and `Imagenet32_val` that the archives make there.

    Raises:
        DataError: some are missing.

    """
    files = [_locate(source, name) for name in (*TRAIN, TEST)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(source, f"ImageNet32's files {', '.join(missing)} are not here", IMAGENET32.how_to_get)
    return SmallImages(
        IMAGENET32, [BatchFile(file, "test" if file.name == TEST else "train", read_batch) for file in files]
    )


def _locate(source: Path, name: str) -> Path:
    folders = (source, source / ("Imagenet32_val" if name == TEST else "Imagenet32_train"))
    return next((folder / name for folder in folders if (folder / name).is_file()), source / name)


def read_batch(content: bytes, path: Path) -> Batch:
    """The contents of one file. Raises: DataError."""
    return read_pickled_batch(content, path, labels="labels", first=1, num_classes=IMAGENET32.num_classes)
