"""Small data sets in the true formats, made of random or photographed pixels."""

import io
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from reproduce.data.beton import Beton
from reproduce.data.manifest import SPLITS, Findings
from reproduce.data.small_images import SmallImages

PIXELS = 3 * 32 * 32


def random_pixels(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """uint8 [count, 3072]."""
    return np.random.default_rng(seed).integers(0, 256, (count, PIXELS), dtype=np.uint8)


def cifar10_binary(folder: Path, per_file: int = 20) -> Path:
    """The binary layout, `per_file` records a file with the labels 0 to 9 in turn."""
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for seed, name in enumerate(names):
        labels = np.arange(per_file, dtype=np.uint8) % 10
        records = np.concatenate([labels[:, None], random_pixels(per_file, seed)], axis=1)
        (folder / "cifar-10-batches-bin" / name).write_bytes(records.tobytes())
    return folder


def cifar10_python(folder: Path, per_file: int = 20) -> Path:
    """The same images and labels in the Python layout, pickled as by Python 2."""
    (folder / "cifar-10-batches-py").mkdir(parents=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        labels = [index % 10 for index in range(per_file)]
        content = python2_pickle({"data": random_pixels(per_file, seed), "labels": labels, "batch_label": name})
        (folder / "cifar-10-batches-py" / name).write_bytes(content)
    return folder


def cifar100_python(folder: Path, count: int = 200) -> Path:
    """CIFAR-100, Python layout."""
    (folder / "cifar-100-python").mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        fine = [index % 100 for index in range(count)]
        values = {"data": random_pixels(count, seed), "fine_labels": fine, "coarse_labels": [n // 5 for n in fine]}
        (folder / "cifar-100-python" / name).write_bytes(python2_pickle(values))
    return folder


def cifar100_binary(folder: Path, count: int = 200) -> Path:
    """The same images and labels in the binary layout."""
    (folder / "cifar-100-binary").mkdir(parents=True)
    for seed, name in enumerate(("train.bin", "test.bin")):
        fine = np.arange(count, dtype=np.uint8) % 100
        records = np.concatenate([fine[:, None] // 5, fine[:, None], random_pixels(count, seed)], axis=1)
        (folder / "cifar-100-binary" / name).write_bytes(records.tobytes())
    return folder


def imagenet32(folder: Path, images: NDArray[np.uint8] | None = None, labels: Sequence[int] | None = None) -> Path:
    """ImageNet32: ten training files and one of validation, the last training file with the rest.

    Args:
        folder: to write to.
        images: uint8 [N, 3072], of which the last tenth becomes the validation set; random ones without it.
        labels: 1..1000 for each.

    """
    folder.mkdir(parents=True, exist_ok=True)
    images = random_pixels(57) if images is None else images
    labels = [1 + 37 * index % 1000 for index in range(len(images))] if labels is None else list(labels)
    train = len(images) - len(images) // 10
    mean, size = np.mean(images[:train], axis=0), train // 10
    for number in range(10):
        part = slice(number * size, (number + 1) * size if number < 9 else train)
        values = {"data": images[part], "labels": labels[part], "mean": mean}
        (folder / f"train_data_batch_{number + 1}").write_bytes(pickle.dumps(values, protocol=3))
    (folder / "val_data").write_bytes(pickle.dumps({"data": images[train:], "labels": labels[train:]}, protocol=3))
    return folder


def image_folder(folder: Path, classes: int = 3, train: int = 4, val: int = 2) -> Path:
    """ImageNet's layout: real JPEGs of several sizes, in colour, grey and CMYK, and one PNG with a wrong name."""
    photographs = load_sample_images().images
    number = 0
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            directory = folder / split / f"n{label:08}"
            directory.mkdir(parents=True)
            for index in range(count):
                width, height = 240 + 16 * (number % 7), 230 + 8 * (number % 5)
                left, top = 13 * number % 300, 7 * number % 150
                image = Image.fromarray(photographs[number % 2]).crop((left, top, left + width, top + height))
                mode = ("RGB", "L", "CMYK", "RGB")[number % 4]
                kind = "PNG" if split == "train" and label == index == 0 else "JPEG"
                image.convert(mode).save(directory / f"{split}_{label}_{index}.JPEG", kind)
                number += 1
    return folder


def contents(source: SmallImages) -> tuple[list[tuple[NDArray[np.uint8], NDArray[np.int64]]], Findings]:
    """Pixels and labels of the training and the test set as `write` leaves them, and what `examine` found."""
    findings = source.examine(lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), findings, lambda _: None)
        images = [Beton(Path(folder) / f"{split}.beton").raw() for split in SPLITS]
    return [(image.pixels, image.labels) for image in images], findings


def python2_pickle(values: dict[str, Any]) -> bytes:
    """Protocol 2 as Python 2 and the numpy of its time wrote it: byte strings, and 0 and 1 for False and True."""
    out = io.BytesIO()
    out.write(b"\x80\x02")
    _put(out, values)
    out.write(b".")
    return out.getvalue()


def _put(out: io.BytesIO, value: object) -> None:
    if isinstance(value, dict):
        out.write(b"}(")
        for key, item in value.items():
            _put(out, key)
            _put(out, item)
        out.write(b"u")
    elif isinstance(value, list):
        out.write(b"](")
        for item in value:
            _put(out, item)
        out.write(b"e")
    elif isinstance(value, np.ndarray):
        rows, columns = value.shape
        out.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R")
        out.write(b"(K\x01" + _integer(rows) + _integer(columns) + b"\x86")  # version and shape
        out.write(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R")
        out.write(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb")  # state of the type
        out.write(b"\x89T" + value.nbytes.to_bytes(4, "little") + value.tobytes() + b"tb")
    elif isinstance(value, str):
        out.write(b"U" + bytes([len(value)]) + value.encode("latin1"))
    else:
        assert isinstance(value, int)
        out.write(_integer(value))


def _integer(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)
