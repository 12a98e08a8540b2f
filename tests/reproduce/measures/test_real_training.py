"""From the files as they are published, through prepare and a loader, to trained weights: all data, all loaders."""

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, checkpoint, methods, models
from petra_core.recipe import learning_rate, sgd
from reproduce.cells.catalogue import CIFAR10, IMAGENET, IMAGENET32, Dataset
from reproduce.data.beton import Beton, JpegFiles
from reproduce.data.loader import BatchFormat, InMemory, Loader
from reproduce.data.manifest import Manifest, read_list
from reproduce.data.torchvision_loader import ImageFiles
from tests import fake_data

pytestmark = pytest.mark.convolutions

needs_ffcv = pytest.mark.skipif(find_spec("ffcv") is None, reason="FFCV is not installed")

ACCUMULATION = 2

Batches = Iterable[tuple[Tensor, Tensor]]


def prepared(dataset: Dataset, source: Path, root: Path) -> tuple[Path, Manifest, BatchFormat]:
    """The folder of a data set that was prepared, what is known of it, and its batches."""
    manifest = fake_data.prepared(dataset, source, root)
    found = manifest.findings
    batch_format = BatchFormat(
        num_classes=found.num_classes, image_size=dataset.image_size, mean=found.mean, deviation=found.deviation
    )
    return root / dataset.name, manifest, batch_format


def loaders(path: Path, batch_format: BatchFormat, batch_size: int) -> tuple[Loader, Loader]:
    """Both loaders of a file of small images."""
    from reproduce.data.ffcv_loader import FfcvFile

    sources = FfcvFile(path, batch_format, augment=True), InMemory(Beton(path).raw(), batch_format, augment=True)
    one, other = (Loader(source, batch_size, seed=1) for source in sources)
    return one, other


def pipeline(depth: int, num_classes: int, stem: str, batch_size: int, groups: list[int] | None = None) -> Pipeline:
    torch.manual_seed(0)
    stages = models.revnet(depth, num_classes=num_classes, stem=stem, width=4)
    stages = models.group(stages, groups) if groups else stages
    rate = learning_rate(batch_size, ACCUMULATION)
    return Pipeline(stages, methods.PETRA, accumulation=ACCUMULATION, optimizer=sgd(rate), seed=0)


def train(petra: Pipeline, batches: Batches) -> list[float]:
    """The losses that come out, the pipeline left full."""
    losses = [petra.step(images, labels) for images, labels in batches]
    return [loss.item() for loss in losses if loss is not None]


def weights(petra: Pipeline) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in petra.model.state_dict().items()}


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def assert_both_loaders_train_alike(folder: Path, batch_format: BatchFormat, stem: str, size: int, steps: int) -> None:
    losses, trained = [], []
    for loader in loaders(folder / "train.beton", batch_format, batch_size=size):
        petra = pipeline(18, batch_format.num_classes, stem, size)
        losses.append(train(petra, islice(loader.epoch(0), steps)))
        trained.append(weights(petra))
        loader.close()
    assert len(losses[0]) == steps - 9  # the first left the head at the tenth tick
    assert losses[0] == losses[1]
    assert_same_weights(*trained)


@needs_ffcv
def test_revnet18_trains_on_real_cifar10_from_both_loaders_alike(real_cifar10: Path, tmp_path: Path) -> None:
    folder, manifest, batch_format = prepared(CIFAR10, real_cifar10, tmp_path)
    assert manifest.findings.splits["train"].histogram == (5000,) * 10
    assert np.allclose(manifest.findings.mean, (0.4914, 0.4822, 0.4465), atol=1e-4)  # as everybody quotes them
    assert np.allclose(manifest.findings.deviation, (0.2470, 0.2435, 0.2616), atol=1e-4)
    assert_both_loaders_train_alike(folder, batch_format, "cifar", 16, 30)


@needs_ffcv
def test_imagenet32_from_its_official_files_to_training(tmp_path: Path) -> None:
    folder, manifest, batch_format = prepared(IMAGENET32, fake_data.imagenet32(tmp_path / "source"), tmp_path)
    assert manifest.findings.splits["train"].samples == 52
    assert batch_format.num_classes == 1000
    assert_both_loaders_train_alike(folder, batch_format, "imagenet32", 4, 13)


@pytest.mark.parametrize("name", [pytest.param("ffcv", marks=needs_ffcv), "torchvision"])
def test_imagenet_from_image_files_through_training_and_a_stop(tmp_path: Path, name: str) -> None:
    """RevNet-50 on images of 224 x 224, stopped with the pipeline full, goes on to the same bits."""
    source = fake_data.image_folder(tmp_path / "source", train=8)
    folder, _, batch_format = prepared(IMAGENET, source, tmp_path)

    def loader() -> Loader:
        if name == "ffcv":
            from reproduce.data.ffcv_loader import FfcvFile

            return Loader(FfcvFile(folder / "train.beton", batch_format, augment=True), 2, seed=2)
        listed = read_list(folder / "train.jsonl")
        files = JpegFiles([source / file.path for file in listed], [file.label for file in listed])
        return Loader(ImageFiles(files, batch_format, augment=True), 2, seed=2)

    def new() -> Pipeline:
        return pipeline(50, batch_format.num_classes, "imagenet", 2, groups=[5, 4, 5, 4])

    whole = new()
    losses = train(whole, islice(loader().epoch(0), 11))
    assert len(losses) == 11 - 3
    assert np.isfinite(losses).all()

    stopped = new()
    first = train(stopped, islice(loader().epoch(0), 7))
    checkpoint.save(tmp_path / "checkpoint.pt", stopped.state_dict())
    resumed = new()
    resumed.load_state_dict(checkpoint.load(tmp_path / "checkpoint.pt"))
    rest = train(resumed, islice(loader().epoch(0, start=resumed.micro_batches), 4))
    assert first + rest == losses
    assert_same_weights(weights(resumed), weights(whole))
