"""Test the DataLoader for image files: batches do not depend on global generators, and errors arrive unchanged."""

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from reproduce.data import torchvision_loader
from reproduce.data.beton import JpegFiles
from reproduce.data.crops import choose_mirrored, random_resized_crops
from reproduce.data.errors import DataError
from reproduce.data.loader import BatchFormat, Evaluation, Loader
from reproduce.data.sample_hash import AUGMENTATION, sample_hashes
from reproduce.data.torchvision_loader import ImageFiles
from tests.fake_data import assert_crops, assert_same_batches, image_folder

# DataLoader forks, and Python 3.12 warns of forks in a process with several threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FILES, SIZE = 12, 56
BYTES = BatchFormat(num_classes=5, image_size=SIZE, mean=(0.0,) * 3, deviation=(1 / 255,) * 3)  # 0..255


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> JpegFiles:
    """Return files of several sizes and modes."""
    folder = image_folder(tmp_path_factory.mktemp("images")) / "train"
    return JpegFiles(sorted(folder.rglob("*.JPEG")), [number % 5 for number in range(FILES)])


def loader(files: JpegFiles, batch_size: int = 5, seed: int = 0, workers: int = 0) -> Loader:
    return Loader(ImageFiles(files, BYTES, augment=True, workers=workers), batch_size, seed=seed)


def evaluation(files: JpegFiles, batch_size: int, workers: int = 0) -> Evaluation:
    return Evaluation(ImageFiles(files, BYTES, augment=False, workers=workers), batch_size)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_ignore_workers_and_keep_random_state(files: JpegFiles, workers: int) -> None:
    """Batches depend on neither workers nor start, and the global random state does not change."""
    whole, before = list(loader(files).epoch(1)), torch.get_rng_state()
    assert len(whole) == loader(files).batches == 2
    assert_same_batches(loader(files, workers=workers).epoch(1), whole)
    assert_same_batches(loader(files, workers=workers).epoch(1, 1, 2), whole[1:])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(params=["fork", "forkserver"])
def default_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set Python's default way of starting processes: the second one since 3.14."""
    multiprocessing.set_start_method(request.param, force=True)
    yield
    multiprocessing.set_start_method(None, force=True)


@pytest.mark.usefixtures("default_start")
def test_worker_ignores_sigterm_except_from_parent(files: JpegFiles) -> None:
    """Slurm sends SIGTERM to every process of a job, and the training process continues until it has saved."""
    whole = list(loader(files, batch_size=1).epoch(1))
    batches = iter(loader(files, batch_size=1, workers=1).epoch(1))
    first = next(batches)
    [worker] = multiprocessing.active_children()
    subprocess.run(["sh", "-c", f"kill -TERM {worker.pid}"], check=True)
    assert_same_batches([first, *batches], whole)

    batches = iter(loader(files, batch_size=1, workers=1).epoch(1))
    next(batches)
    [worker] = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(60)
    assert worker.exitcode == 0
    batches.close()


def test_torchvision_crops_follow_the_sample_hash(files: JpegFiles) -> None:
    """The crop and the mirroring of every image are those of its hash."""
    [(images, labels)] = loader(files, FILES).epoch(0)
    hashes = sample_hashes(0, 0, AUGMENTATION, FILES)
    assert images.shape == (FILES, 3, SIZE, SIZE)
    assert images.dtype == torch.float32
    widths, heights = np.array([Image.open(path).convert("RGB").size for path in files.paths]).T
    boxes = random_resized_crops(hashes, heights, widths)
    assert_crops((images, labels), files, boxes, choose_mirrored(hashes), mean=0)


@pytest.mark.parametrize(("batch_size", "workers"), [(5, 1), (64, 0)])
def test_evaluation_equals_torchvision_examples(files: JpegFiles, batch_size: int, workers: int) -> None:
    """Evaluation gives the same pixels as Resize and CenterCrop of torchvision."""
    transform = v2.Compose([v2.Resize(64), v2.CenterCrop(SIZE), v2.PILToTensor()])  # as 256 and 224
    images, labels = (torch.cat(parts) for parts in zip(*evaluation(files, batch_size, workers), strict=True))
    expected = torch.stack([transform(Image.open(path).convert("RGB")) for path in files.paths])
    assert torch.equal(images.round().to(torch.uint8), expected)
    assert labels.tolist() == files.labels


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_file_is_named(tmp_path: Path, files: JpegFiles, workers: int) -> None:
    """An unreadable image raises a DataError with its path."""
    broken = tmp_path / "broken.JPEG"
    broken.write_bytes(files.paths[1].read_bytes()[:-100])
    with_it = JpegFiles([*files.paths[1:4], broken], [0, 1, 2, 3])
    with pytest.raises(DataError, match=r"broken\.JPEG: cannot be read as an image \(.+\)") as caught:
        list(evaluation(with_it, 2, workers))
    assert caught.value.path == broken


def _die(*_: object) -> None:
    os._exit(9)


def _sleep(*_: object) -> None:
    signal.pause()


@pytest.mark.parametrize("what", [_die, _sleep])
def test_silent_worker_ends_the_run_with_remedy(
    files: JpegFiles, monkeypatch: pytest.MonkeyPatch, what: Callable[..., None]
) -> None:
    """A worker that died or sends nothing raises a DataError that states the remedy."""
    monkeypatch.setattr(torchvision_loader, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # torch waits 5 s for its end
    monkeypatch.setattr(torchvision_loader._Images, "__getitem__", what)
    started = time.monotonic()
    with pytest.raises(DataError, match=r"died, or sent nothing for 1 s .*fewer --data-workers"):
        list(evaluation(files, 4, workers=1))
    assert time.monotonic() - started < 60


def test_no_shared_memory_is_used(files: JpegFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is full, as in a container with 64 MB of it, a thread of the worker fails without a message."""

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_filename_cpu_", full)
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    monkeypatch.setattr(torchvision_loader, "PATIENCE_SECONDS", 20.0)
    assert_same_batches(evaluation(files, 5, workers=1), list(evaluation(files, 5)))


def test_changed_image_size_is_refused(files: JpegFiles) -> None:
    """An image file of another size than listed raises a DataError with its path."""
    sizes = [path.stat().st_size for path in files.paths]
    listed = JpegFiles(files.paths, files.labels, sizes)
    assert_same_batches(evaluation(listed, 5), list(evaluation(files, 5)))
    sizes[3] += 1
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"has .* bytes, and had .* when the data set was prepared") as caught:
            list(evaluation(JpegFiles(files.paths, files.labels, sizes), 5, workers))
        assert caught.value.path == files.paths[3]
