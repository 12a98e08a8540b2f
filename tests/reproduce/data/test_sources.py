"""Test the way from a cell to its batches: the right files, the right loader, and no training on other data."""

import dataclasses
import re
import sys
import threading
from importlib.util import find_spec

import pytest
import torch

from petra_core import CheckpointError
from reproduce.cells import catalogue
from reproduce.cells.catalogue import CIFAR10, CIFAR100, IMAGENET
from reproduce.data import sources
from reproduce.data.errors import DataError
from reproduce.data.sources import open_data
from reproduce.distributed.group import Group, UnsupportedError
from reproduce.measures.context import Context, Stopped
from reproduce.measures.run_options import RunOptions
from reproduce.records.record import Record, Status
from reproduce.running.execution import execute
from tests import fake_data
from tests.example_cells import TRAINING
from tests.fake_data import assert_same_batches, prepared
from tests.processes import call

needs_ffcv = pytest.mark.skipif(find_spec("ffcv") is None, reason="FFCV is not installed")
CPU = torch.device("cpu")
CIFAR = {"dataset": "cifar10", "image_size": 32, "augmentation": "flip_crop", "loader": "memory", "batch_size": 10}
CELL = dataclasses.replace(TRAINING, **CIFAR, width=2, epochs=2, drops=())
PHOTOGRAPHS = {"dataset": "imagenet", "image_size": 64, "augmentation": "random_resized_crop", "batch_size": 4}
IMAGENET_CELL = dataclasses.replace(CELL, **PHOTOGRAPHS, loader="torchvision")


@pytest.fixture
def root(tmp_path):
    """Return a folder with CIFAR-10 of 100 training and 20 test images."""
    prepared(CIFAR10, fake_data.cifar10_binary(tmp_path / "source"), tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def imagenet_root(tmp_path):
    prepared(IMAGENET, fake_data.image_folder(tmp_path / "photographs"), tmp_path / "data")
    return tmp_path / "data"


@needs_ffcv
def test_memory_and_ffcv_loaders_give_same_bits(root):
    """The memory loader and the FFCV loader give bitwise equal batches and the same provenance."""
    memory = open_data(CELL, CPU, root)
    ffcv = open_data(dataclasses.replace(CELL, loader="ffcv"), CPU, root, workers=2)
    assert type(memory.train.source) is not type(ffcv.train.source)
    assert_same_batches(memory.train.epoch(1, start=3), ffcv.train.epoch(1, start=3))
    assert_same_batches(memory.test, ffcv.test)
    assert memory.provenance == ffcv.provenance
    ffcv.train.close()


def test_digits_are_augmented_as_the_cell_requests():
    """Digits are augmented only if the cell requests it."""
    digits = dataclasses.replace(TRAINING, loader="memory")
    plain, augmented = (
        next(open_data(dataclasses.replace(digits, augmentation=how), CPU).train.epoch(0))[0]
        for how in ("none", "flip_crop")
    )
    assert not torch.equal(plain, augmented)
    assert plain.sum() != augmented.sum()


def test_training_and_test_set_are_not_confused(root):
    """Training and test set have their sizes, and training images are normalised by their statistics."""
    data = open_data(CELL, CPU, root)
    assert (data.train.samples, data.train.batches, data.train.num_classes) == (100, 10, 10)
    assert data.test.samples == sum(len(labels) for _, labels in data.test) == 20
    plain = open_data(dataclasses.replace(CELL, augmentation="none"), CPU, root)
    images_of_epoch = torch.cat([images for images, _ in plain.train.epoch(0)])
    assert images_of_epoch.mean((0, 2, 3)).abs().max() < 1e-3  # normalised by the statistics of this data set
    assert (images_of_epoch.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-3


@pytest.mark.parametrize("loader", ["memory", pytest.param("ffcv", marks=needs_ffcv)])
def test_held_out_samples_are_tested_and_never_trained_on(root, loader):
    """Held-out images are the same for all seeds and are not augmented, and no epoch contains them."""
    plain = open_data(dataclasses.replace(CELL, augmentation="none"), CPU, root)
    number = {image.numpy().tobytes(): n for images, _ in plain.train.epoch(0) for n, image in enumerate(images)}
    assert len(number) == 100  # all images differ
    tested = []
    for seed in (0, 1):
        cell = dataclasses.replace(CELL, held_out=25, loader=loader, seed=seed, augmentation="none")
        held = open_data(cell, CPU, root, workers=2)
        assert (held.train.samples, held.train.batches, held.test.samples) == (75, 7, 25)
        tested.append([image.numpy().tobytes() for images, _ in held.test for image in images])
        for epoch in range(3):
            trained = [image.numpy().tobytes() for images, _ in held.train.epoch(epoch) for image in images]
            assert len(set(trained)) == 70
            assert not set(trained) & set(tested[-1])
            assert set(trained) | set(tested[-1]) <= set(number)
        assert_same_batches(held.test, open_data(dataclasses.replace(cell, augmentation="flip_crop"), CPU, root).test)
        held.train.close()
    assert tested[0] == tested[1]
    assert len(set(tested[0])) == 25


@pytest.mark.parametrize("loader", ["torchvision", pytest.param("ffcv", marks=needs_ffcv)])
def test_imagenet_has_the_image_size_of_the_cell(imagenet_root, loader):
    """ImageNet's batches have the image size of the cell, and evaluation is in order."""
    data = open_data(dataclasses.replace(IMAGENET_CELL, loader=loader), CPU, imagenet_root)
    images, labels = next(iter(data.train.epoch(0)))
    assert (data.train.samples, data.train.num_classes) == (12, 3)
    assert images.shape == (4, 3, 64, 64)
    assert labels.shape == (4,)
    [(images, labels)] = data.test
    assert images.shape == (6, 3, 64, 64)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    data.train.close()


def test_open_data_errors_state_the_remedy(root, tmp_path, monkeypatch):
    """Unprepared data, a too large batch size and a missing loader raise errors that state the remedy."""
    elsewhere = tmp_path / "elsewhere"
    command = rf"python -m reproduce data prepare cifar10 --data-root {re.escape(str(elsewhere))}; .*--download"
    with pytest.raises(DataError, match=rf"cifar10 is not prepared. Prepare it: {command}"):
        open_data(CELL, CPU, elsewhere)
    words = f"train --dataset cifar10 --loader memory --data-root {elsewhere} --output {tmp_path / 'run'}"
    assert re.search(f"cifar10 is not prepared. Prepare it: {command}", call(*words.split()).output)
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match=r"batch_size 101 is larger than this training set \(100 samples\)"):
        open_data(dataclasses.replace(CELL, batch_size=101), CPU, root)
    monkeypatch.setitem(sys.modules, "reproduce.data.ffcv_loader", None)
    with pytest.raises(DataError, match=r"the loader is ffcv: .*--loader memory"):
        open_data(dataclasses.replace(CELL, loader="ffcv"), CPU, root)


def test_flipped_bit_is_detected_before_training(root, monkeypatch):
    """A flipped bit is detected before training; for large data sets only names and sizes are checked."""
    message = r"does not have the recorded content.*prepare cifar10 --data-root .* --replace"
    for name in ("test.beton", "train.beton"):
        path = root / "cifar10" / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[-5000] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{name} {message}"):
            open_data(CELL, CPU, root)
        if name == "test.beton":
            path.write_bytes(whole)
    monkeypatch.setattr(sources, "READ_WHOLE", 1000)
    open_data(CELL, CPU, root)
    sources._verify_once.cache_clear()
    path.write_bytes(damaged[:-1])
    with pytest.raises(DataError, match="bytes, expected"):
        open_data(CELL, CPU, root)


def test_other_data_set_under_wrong_name_is_detected(root, tmp_path):
    """A folder that contains another data set than its name indicates raises a DataError."""
    prepared(CIFAR100, fake_data.cifar100_binary(tmp_path / "other"), tmp_path / "elsewhere")
    (root / "cifar10").rename(root / "old")
    (tmp_path / "elsewhere" / "cifar100").rename(root / "cifar10")
    with pytest.raises(DataError, match="cifar10: contains cifar100"):
        open_data(CELL, CPU, root)


@pytest.mark.parametrize("ask", [sources.check, lambda cell, root: open_data(cell, CPU, root)])
@pytest.mark.parametrize("beton", [True, False])
def test_listed_images_are_refused_by_ffcv_and_must_exist(tmp_path, monkeypatch, ask, beton):
    """Copied images are not supported by torchvision's loader."""
    monkeypatch.setattr(catalogue, "ffcv_installed", lambda: True)
    source, root = fake_data.image_folder(tmp_path / "photographs"), tmp_path / "data"
    prepared(IMAGENET, source, root, only_list=not beton)
    ask(IMAGENET_CELL, root)
    if not beton:
        with pytest.raises(DataError, match=r"only listed, not copied\. Prepare it without --no-beton"):
            ask(dataclasses.replace(IMAGENET_CELL, loader="ffcv"), root)
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"the folder of the images, {source}, does not exist.*--source DIR"):
        ask(IMAGENET_CELL, root)
    if beton and find_spec("ffcv") is not None:
        ask(dataclasses.replace(IMAGENET_CELL, loader="ffcv"), root)


def test_processes_with_other_files_are_refused(root, tmp_path):
    """A process on a machine with other files would train and test on them, and the record would not show it."""
    prepared(CIFAR10, fake_data.cifar10_binary(tmp_path / "other", per_file=30), tmp_path / "elsewhere")
    there = open_data(CELL, CPU, tmp_path / "elsewhere").provenance["files"]

    class Pair(Group):
        @staticmethod
        def gather(value):
            return [value, there if "train.beton" in value else value]

    context = Context(options=RunOptions(data_root=root), group=Pair())
    with pytest.raises(UnsupportedError, match=r"rank 1 would train on other files than rank 0 .*: prepare the same"):
        execute(Record(tmp_path / "record", CELL), context)


def test_run_resumes_only_with_same_files_and_records_them(root, tmp_path):
    """A data set that was prepared again between stop and resume would give a result of two data sets."""
    record, options = Record(tmp_path / "record", CELL), RunOptions(data_root=root)
    for _ in range(2):
        with pytest.raises(Stopped):
            execute(record, Context(options=options, should_stop=lambda: True))
    file = root / "cifar10" / "manifest.json"
    file.write_text(file.read_text().replace("a test", "in other words"))
    checkpoint = record.checkpoint.read_bytes()
    assert execute(record, Context(options=options)).status is Status.DONE
    provenance = record.read().result["data"]
    assert (provenance["dataset"], provenance["official"], provenance["reason"]) == ("cifar10", False, "in other words")
    assert set(provenance["files"]) == {"train.beton", "test.beton"}
    (record.path / "result.json").unlink()
    record.checkpoint.write_bytes(checkpoint)
    prepared(CIFAR10, fake_data.cifar10_binary(tmp_path / "other", per_file=30), root, replace=True)
    with pytest.raises(CheckpointError, match="trained on other files of cifar10 than the current ones"):
        execute(record, Context(options=options))


@needs_ffcv
def test_decoding_threads_end_with_the_run(imagenet_root, tmp_path):
    """No thread of the FFCV loader is left after a run."""
    cell = dataclasses.replace(IMAGENET_CELL, loader="ffcv", epochs=1)
    before = set(threading.enumerate())
    execute(Record(tmp_path / "record", cell), Context(options=RunOptions(data_root=imagenet_root, data_workers=3)))
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


@pytest.mark.parametrize(
    ("samples", "device", "size"),
    [(10_000, "cuda", 2000), (9_980, "cuda", 1996), (300, "cuda", 2000), (10_007, "cuda", 2000), (10_000, "cpu", 512)],
)
def test_gpu_evaluates_in_batches_of_one_shape(samples: int, device: str, size: int) -> None:
    """On a GPU, the evaluation batch size divides the test set if possible; on a CPU it is 512."""
    assert sources._evaluation_batch(samples, torch.device(device)) == size
