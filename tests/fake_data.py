"""Make small data sets in the real formats, from random or photographed pixels."""

import hashlib
import io
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from reproduce.cells.catalogue import Dataset
from reproduce.data.beton import Beton, JpegFiles
from reproduce.data.crops import Integers
from reproduce.data.loader import Batch
from reproduce.data.manifest import SPLITS, Findings, Manifest, Options, Split, Written
from reproduce.data.prepare import prepare
from reproduce.data.sample_hash import sample_order
from reproduce.data.small_images import SmallImages

PIXELS = 3 * 32 * 32


def random_pixels(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return random pixels, uint8 [count, 3072]."""
    return np.random.default_rng(seed).integers(0, 256, (count, PIXELS), dtype=np.uint8)


def cifar10_binary(folder: Path, per_file: int = 20) -> Path:
    """Write the binary layout of CIFAR-10, `per_file` records per file with the labels 0 to 9 in turn."""
    (folder / "cifar-10-batches-bin").mkdir(parents=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for seed, name in enumerate(names):
        labels = np.arange(per_file, dtype=np.uint8) % 10
        records = np.concatenate([labels[:, None], random_pixels(per_file, seed)], axis=1)
        (folder / "cifar-10-batches-bin" / name).write_bytes(records.tobytes())
    return folder


def cifar100_binary(folder: Path, count: int = 200) -> Path:
    """Write CIFAR-100 in the binary layout, `count` records per file with the labels 0 to 99 in turn."""
    (folder / "cifar-100-binary").mkdir(parents=True)
    for seed, name in enumerate(("train.bin", "test.bin")):
        fine = np.arange(count, dtype=np.uint8) % 100
        records = np.concatenate([fine[:, None] // 5, fine[:, None], random_pixels(count, seed)], axis=1)
        (folder / "cifar-100-binary" / name).write_bytes(records.tobytes())
    return folder


def imagenet32(folder: Path, images: NDArray[np.uint8] | None = None, labels: Sequence[int] | None = None) -> Path:
    """Write ImageNet32: ten training files and one for validation; the last training file contains the rest.

    Args:
        folder: Folder to write to.
        images: Images, uint8 [N, 3072], of which the last tenth becomes the validation set; random if None.
        labels: Label of each image, 1..1000.

    Returns:
        The folder.

    """
    folder.mkdir(parents=True, exist_ok=True)
    images = random_pixels(57) if images is None else images
    labels = [1 + 37 * index % 1000 for index in range(len(images))] if labels is None else list(labels)
    train = len(images) - len(images) // 10
    mean, size = np.mean(images[:train], axis=0), train // 10
    for number in range(10):
        part = slice(number * size, (number + 1) * size if number < 9 else train)
        np.savez(folder / f"train_data_batch_{number + 1}.npz", data=images[part], labels=labels[part], mean=mean)
    np.savez(folder / "val_data.npz", data=images[train:], labels=labels[train:])
    return folder


def image_folder(folder: Path, classes: int = 3, train: int = 4, val: int = 2) -> Path:
    """Write ImageNet's layout: real JPEGs of several sizes, in colour, grey and CMYK, and one PNG with a wrong name."""
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
    """Return pixels and labels of the training and test set as `write` stores them, and the findings of `examine`."""
    findings = source.examine(lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), lambda _: None)
        images = [Beton(Path(folder) / f"{split}.beton").raw() for split in SPLITS]
    return [(image.pixels, image.labels) for image in images], findings


def prepared(dataset: Dataset, source: Path, root: Path, **options: bool) -> Manifest:
    """Return the result of `prepare` for an unofficial source."""
    return prepare(dataset, source, root, Options(reason="a test", **options), lambda *_: nullcontext(lambda _: None))[
        0
    ]


def assert_crops(batch: Batch, files: JpegFiles, boxes: Integers, flips: NDArray[np.bool_], mean: float) -> None:
    """Assert that the first epoch of seed 0 is these boxes of the files, resized and mirrored, in 0..255.

    Args:
        batch: All images, and their labels.
        files: The image files.
        boxes: Box of each file (top, left, height, width).
        flips: Whether each image is mirrored.
        mean: Largest mean difference of an image, after rounding.

    """
    for image, label, sample in zip(*batch, sample_order(0, 0, len(files.paths)), strict=True):
        top, left, height, width = boxes[sample]
        with Image.open(files.paths[sample]) as picture:
            crop = picture.convert("RGB").crop((left, top, left + width, top + height))
        expected = np.array(crop.resize(image.shape[1:], Image.Resampling.BILINEAR))
        expected = expected[:, ::-1] if flips[sample] else expected
        assert abs(image.round().permute(1, 2, 0).numpy() - expected).mean() <= mean
        assert label == files.labels[sample]


def assert_same_batches(one: Iterable[Batch], other: Iterable[Batch]) -> None:
    """Assert that the batches are bitwise equal."""
    for (x, y), (expected_x, expected_y) in zip(one, other, strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)


#: The arrays of a batch file of ImageNet32.
ARRAYS = {"data": random_pixels(4), "labels": np.array([1, 1000, 500, 1]), "mean": np.full(3072, 127.5)}


def batch_file(change, save=np.savez):
    """Return a batch file of ImageNet32 with `ARRAYS`, except for some."""
    out = io.BytesIO()
    save(out, **{name: array for name, array in {**ARRAYS, **change}.items() if array is not None})
    return out.getvalue()


FINDINGS = Findings(
    splits={"train": Split(3, (1, 2)), "test": Split(2, (1, 1))}, mean=(0.1, 0.2, 1 / 3), deviation=(0.25, 0.25, 0.5)
)
CONTENTS = {"train.beton": b"training", "test.beton": b"test"}
FILES = {name: Written(bytes=len(c), sha256=hashlib.sha256(c).hexdigest()) for name, c in CONTENTS.items()}
MANIFEST = Manifest(dataset="cifar10", source="there", findings=FINDINGS, reason="", files=FILES)
