"""Test the adapter of FFCV: it gives the batches of the in-memory loader, and avoids FFCV's pitfalls."""

import os
import sys
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce.data.beton import Beton, JpegFiles, RawImages, write_beton
from reproduce.data.crops import centre_crops, choose_mirrored, random_resized_crops
from reproduce.data.errors import DataError
from reproduce.data.loader import BatchFormat, Evaluation, InMemory, Loader, Source
from reproduce.data.sample_hash import AUGMENTATION, sample_hashes
from tests.fake_data import assert_crops, assert_same_batches, image_folder
from tests.processes import Start

if find_spec("ffcv") is None:
    pytest.skip("FFCV is not installed", allow_module_level=True)

SAMPLES, SIZE, CLASSES = 50, 12, 10
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SMALL = BatchFormat(num_classes=CLASSES, image_size=SIZE, mean=MEAN, deviation=DEVIATION)
LARGE = BatchFormat(num_classes=CLASSES, image_size=64, mean=(0.0,) * 3, deviation=(1 / 255,) * 3)  # 0..255


def pixels_and_labels() -> RawImages:
    pixels = np.random.default_rng(0).integers(256, size=(SAMPLES, 3, SIZE, SIZE), dtype=np.uint8)
    return RawImages(pixels, np.arange(SAMPLES) % CLASSES)


def ffcv_file(path: Path, *arguments: Any, **options: Any) -> Source:
    """Import late, since Numba takes seconds at it, also in processes that only collect the tests."""
    from reproduce.data.ffcv_loader import FfcvFile

    return FfcvFile(path, *arguments, **options)


def in_memory(augment: bool) -> InMemory:
    return InMemory(pixels_and_labels(), SMALL, augment=augment)


@pytest.fixture(scope="module")
def raw_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "raw.beton"
    write_beton(path, pixels_and_labels())
    return path


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> JpegFiles:
    """Write twelve files of several sizes and modes, one with bytes that libjpeg warns of."""
    paths = sorted((image_folder(tmp_path_factory.mktemp("jpegs")) / "train").rglob("*.JPEG"))
    data = paths[4].read_bytes()
    paths[4].write_bytes(data[:20] + b"extraneous" + data[20:])  # after the first header
    return JpegFiles(paths, [number % CLASSES for number in range(12)])


@pytest.fixture(scope="module")
def jpeg_file(tmp_path_factory: pytest.TempPathFactory, jpegs: JpegFiles) -> Path:
    path = tmp_path_factory.mktemp("jpeg") / "jpeg.beton"
    write_beton(path, jpegs)
    return path


def raw_loader(path: Path, batch_size: int = 8, augment: bool = True, seed: int = 0, workers: int = 1) -> Loader:
    return Loader(ffcv_file(path, SMALL, augment=augment, workers=workers), batch_size, seed=seed)


def jpeg_loader(path: Path, batch_size: int = 5, seed: int = 0, workers: int = 1) -> Loader:
    return Loader(ffcv_file(path, LARGE, augment=True, workers=workers), batch_size, seed=seed)


def evaluation(path: Path, batch_size: int, batch_format: BatchFormat = LARGE) -> Evaluation:
    return Evaluation(ffcv_file(path, batch_format, augment=False), batch_size)


def ffcv_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if type(thread).__name__ == "EpochIterator"]


@pytest.mark.parametrize(
    ("augment", "batch_size", "workers"), [(False, 1, 3), (False, 50, 1), (True, 7, 2), (True, 8, 1)]
)
def test_ffcv_batches_equal_in_memory_batches(raw_file: Path, augment: bool, batch_size: int, workers: int) -> None:
    """A batch is kept when later ones are read: FFCV would overwrite it. Other random states must not change."""
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    memory = Loader(in_memory(augment), batch_size, seed=5)
    loader = raw_loader(raw_file, batch_size, augment, 5, workers)
    assert (loader.num_classes, loader.samples, loader.batches) == (CLASSES, SAMPLES, memory.batches)
    for which in ((0,), (3, 4), (3, 1, 4), (3, 6)):
        assert_same_batches(list(loader.epoch(*which)), memory.epoch(*which))
    loader.close()
    batches = evaluation(raw_file, batch_size, SMALL)
    for _ in range(2):
        assert_same_batches(batches, Evaluation(in_memory(False), batch_size))
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_jpeg_batches_do_not_depend_on_workers_and_start(jpeg_file: Path) -> None:
    """JPEG batches are the same with several workers and when an epoch starts in the middle."""
    whole = list(jpeg_loader(jpeg_file).epoch(1))
    loader = jpeg_loader(jpeg_file, workers=3)
    assert_same_batches(loader.epoch(1), whole)
    assert_same_batches(loader.epoch(1, 1), whole[1:])
    loader.close()


@pytest.mark.parametrize("augment", [True, False])
def test_jpeg_crops_follow_the_sample_hash(jpeg_file: Path, jpegs: JpegFiles, augment: bool) -> None:
    """The crop and the mirroring of every JPEG image are those of its hash."""
    source = ffcv_file(jpeg_file, LARGE, augment=augment)
    [batch] = Loader(source, 12, seed=0).epoch(0)
    file, hashes = Beton(jpeg_file), sample_hashes(0, 0, AUGMENTATION, 12)
    shapes = file.heights, file.widths
    boxes = random_resized_crops(hashes, *shapes) if augment else centre_crops(*shapes)
    assert 0 < choose_mirrored(hashes).sum() < 12
    assert_crops(batch, jpegs, boxes, choose_mirrored(hashes) & augment, mean=2)  # of 255, because the decoder differs


@pytest.mark.parametrize(("taken", "workers"), [(0, 1), (1, 2), (5, 1), (6, 2)])
def test_abandoned_or_closed_epoch_leaves_no_thread(raw_file: Path, taken: int, workers: int) -> None:
    """Any place includes the end: FFCV's thread checks its flag only while the queue is full."""
    before = set(threading.enumerate())  # some of them may end during the test
    loader = raw_loader(raw_file, workers=workers)
    batches = loader.epoch(0)
    for _ in range(taken):
        next(batches)
    assert len(ffcv_threads()) <= 1
    del batches
    assert not ffcv_threads()
    held = loader.epoch(0)
    next(held)
    assert len(ffcv_threads()) == 1
    loader.close()
    assert not ffcv_threads()
    assert list(held) == []
    assert set(threading.enumerate()) <= before


def test_rest_of_abandoned_epoch_is_not_read(raw_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it would take minutes for ImageNet."""
    loader = raw_loader(raw_file, 1)
    decode, decoded = loader.source._decoder, []
    monkeypatch.setattr(loader.source, "_decoder", lambda *batch: (decode(*batch), decoded.append(1)))
    batches = loader.epoch(0)
    next(batches)
    del batches
    assert not ffcv_threads()
    assert len(decoded) <= 6  # of 50: one was taken, three may be queued, one finished and one started


def test_further_loaders_compile_nothing(raw_file: Path, jpeg_file: Path) -> None:
    """FFCV compiles for 7 to 10 seconds per Loader, and a grid has hundreds of cells."""
    from numba.core import event

    list(raw_loader(raw_file).epoch(0))
    list(jpeg_loader(jpeg_file).epoch(0))
    with event.install_recorder("numba:compile") as recorder:
        list(raw_loader(raw_file, 3, False, seed=1, workers=2).epoch(4))
        list(jpeg_loader(jpeg_file, 4, seed=1, workers=2).epoch(4))
        list(evaluation(raw_file, 4, SMALL))
        list(evaluation(jpeg_file, 4))
    assert not recorder.buffer


def print_threads(path: Path) -> None:
    """Print the number of batches and torch's threads after several epochs, with errors in place of warnings."""
    os.dup2(2, 1)
    warnings.simplefilter("error")
    torch.set_num_threads(3)
    for workers in (1, 2):
        loader = raw_loader(path, 4, workers=workers)
        batches = list(loader.epoch(0))
        next(loader.epoch(1))
        loader.close()
        del loader
    seen = [torch.get_num_threads()]
    thread = threading.Thread(target=lambda: (torch.ones(2) + 1, seen.append(torch.get_num_threads())))
    thread.start()
    thread.join()
    print(len(batches), *seen, file=sys.stderr)


def test_torch_threads_are_kept_and_nothing_is_printed(raw_file: Path, start: Start) -> None:
    """FFCV sets torch's threads at import, with every Loader and epoch, and again in its thread."""
    assert start(print_threads, raw_file).stderr() == "12 3 3\n"


def test_undecodable_image_raises_instead_of_hanging(tmp_path: Path, jpeg_file: Path) -> None:
    """FFCV ignores return codes. An exception would end its thread, and the main thread would wait without end."""
    path = tmp_path / "damaged.beton"
    data = bytearray(jpeg_file.read_bytes())
    place = Beton(jpeg_file).places[7]
    data[place : place + 200] = bytes(200)
    path.write_bytes(data)
    loader = jpeg_loader(path, 3)
    with pytest.raises(DataError, match=r"damaged\.beton: image 7 cannot be decoded \(.+data prepare"):
        list(loader.epoch(0))
    assert not ffcv_threads()


def test_wrong_labels_and_image_sizes_are_refused(raw_file: Path) -> None:
    """Labels out of range and images of another size raise a DataError."""
    few = BatchFormat(num_classes=7, image_size=SIZE, mean=MEAN, deviation=DEVIATION)
    with pytest.raises(DataError, match=r"image 7 has the label 7, expected 0\.\.6 \(15 such labels\)"):
        evaluation(raw_file, 8, few)
    with pytest.raises(DataError, match="its images have 12 x 12 pixels, expected 64 x 64"):
        evaluation(raw_file, 8)
