"""Read ImageNet32 from its published numpy archives (Chrabaszcz, Loshchilov and Hutter 2017, arXiv 1707.08819).

The files are `train_data_batch_1.npz` to `train_data_batch_10.npz` and `val_data.npz`. Each contains `data`, uint8
[N, 3072] (planar RGB), and `labels`, integers [N] in 1..1000. The training files also contain `mean`, the mean image of
the whole training set. No checksums are published, so the mean image serves as one.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduce.cells.catalogue import IMAGENET32
from reproduce.data.errors import DataError, check_labels
from reproduce.data.small_images import FIX, PIXELS, SIDE, Batch, Layout, SmallImages

LAYOUT = Layout(
    train={f"train_data_batch_{number}.npz": "" for number in range(1, 11)},
    test={"val_data.npz": ""},
    folders=("Imagenet32_train_npz", "Imagenet32_val_npz"),
)


def find(source: Path) -> SmallImages:
    """Return the data set in `source`.

    Raises:
        DataError: If files are missing.

    """
    return SmallImages(IMAGENET32, source, LAYOUT, read_batch)


def read_batch(content: bytes, path: Path) -> Batch:
    """Parse one file.

    Raises:
        DataError: If the file is damaged, contains a pickle, or has arrays of another type or shape.

    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            stored = archive.namelist()  # members are read completely; otherwise zipfile does not verify checksums
            pixels, labels, mean = (
                np.load(io.BytesIO(archive.read(name)), allow_pickle=False) if name in stored else None
                for name in ("data.npy", "labels.npy", "mean.npy")
            )
    except Exception as error:  # a damaged archive may raise anything
        raise DataError(path, f"not a complete numpy archive ({error})", FIX) from error
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise DataError(path, f"'data' is {_words(pixels)}, expected uint8 [N, {PIXELS}] (32 x 32 x 3)", FIX)
    if labels is None or labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
        raise DataError(path, f"'labels' is {_words(labels)}, expected integers [{len(pixels)}]", FIX)
    check_labels(labels.tolist(), 1, IMAGENET32.num_classes, path, FIX)
    if mean is not None and (mean.dtype.kind != "f" or mean.shape != (PIXELS,)):
        raise DataError(path, f"'mean' is {_words(mean)}, expected float [{PIXELS}]", FIX)
    return Batch(pixels.reshape(-1, 3, SIDE, SIDE), labels.astype(np.int64) - 1, mean)


def _words(array: NDArray[Any] | None) -> str:
    return "missing" if array is None else f"{array.dtype} {list(array.shape)}"
