"""CIFAR in every layout, and what can be wrong with it."""

import functools
import hashlib
import http.server
import pickle
import tarfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from reproduce.cells.catalogue import CIFAR10, CIFAR100
from reproduce.data import cifar
from reproduce.data.errors import DataError
from tests import fake_data
from tests.fake_data import contents, random_pixels


@pytest.mark.parametrize(
    ("dataset", "binary", "python"),
    [
        (CIFAR10, fake_data.cifar10_binary, fake_data.cifar10_python),
        (CIFAR100, fake_data.cifar100_binary, fake_data.cifar100_python),
    ],
)
def test_both_layouts_hold_the_same_images_and_labels(tmp_path, dataset, binary, python):
    one, found = contents(cifar.find(dataset, binary(tmp_path / "binary")))
    other, found_too = contents(cifar.find(dataset, python(tmp_path / "python")))
    for (pixels, labels), (pixels_too, labels_too) in zip(one, other, strict=True):
        np.testing.assert_array_equal(pixels, pixels_too)
        np.testing.assert_array_equal(labels, labels_too)
    assert found.splits == found_too.splits
    assert found.mean == found_too.mean
    assert found.fingerprint != found_too.fingerprint


def test_images_and_labels_come_in_the_order_of_the_files(tmp_path):
    (train, test), findings = contents(cifar.find(CIFAR10, fake_data.cifar10_binary(tmp_path, per_file=20)))
    np.testing.assert_array_equal(train[0][20:40].reshape(20, -1), random_pixels(20, seed=1))
    np.testing.assert_array_equal(test[0].reshape(20, -1), random_pixels(20, seed=5))
    assert train[0].shape == (100, 3, 32, 32)
    assert train[1].tolist() == [*range(10)] * 10
    assert findings.splits["train"].histogram == (10,) * 10


def test_mean_and_deviation_are_those_of_the_training_pixels(tmp_path):
    (train, _), findings = contents(cifar.find(CIFAR10, fake_data.cifar10_binary(tmp_path)))
    pixels = train[0].astype(np.float64) / 255
    np.testing.assert_allclose(findings.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(findings.deviation, pixels.std((0, 2, 3)), rtol=1e-10)


def test_torchvision_reads_the_same_from_the_python_layout(tmp_path, monkeypatch):
    """Ours is not a second opinion of the format."""
    fake_data.cifar10_python(tmp_path)
    for name in ("train_list", "test_list"):
        files = [[file, None] for file, _ in getattr(datasets.CIFAR10, name)]
        monkeypatch.setattr(datasets.CIFAR10, name, files)
    monkeypatch.setattr(datasets.CIFAR10, "_load_meta", lambda self: None)
    ours, _ = contents(cifar.find(CIFAR10, tmp_path))
    for (pixels, labels), train in zip(ours, (True, False), strict=True):
        with warnings.catch_warnings(action="ignore"):  # numpy 2.4 warns of what Python 2 wrote
            theirs = datasets.CIFAR10(str(tmp_path), train=train)
        np.testing.assert_array_equal(pixels.transpose(0, 2, 3, 1), theirs.data)
        assert labels.tolist() == theirs.targets


@pytest.mark.parametrize(("dataset", "published"), [(CIFAR10, datasets.CIFAR10), (CIFAR100, datasets.CIFAR100)])
def test_checksums_of_the_python_layout_are_torchvisions(dataset, published):
    (layout,) = [layout for layout in cifar.LAYOUTS[dataset] if layout.pickled]
    assert layout.folder == published.base_folder
    assert layout.train == {name: f"md5:{md5}" for name, md5 in published.train_list}
    assert layout.test == {name: f"md5:{md5}" for name, md5 in published.test_list}


def test_the_real_training_batches_are_official_and_every_flipped_bit_shows(real_cifar10, tmp_path):
    (layout,) = [layout for layout in cifar.LAYOUTS[CIFAR10] if not layout.pickled]
    for name, official in layout.train.items():
        content = (real_cifar10 / layout.folder / name).read_bytes()
        assert f"sha1:{hashlib.sha1(content).hexdigest()}" == official
    damaged = bytearray(content)
    damaged[12345] ^= 1
    other = fake_data.cifar10_binary(tmp_path) / layout.folder
    (other / name).write_bytes(damaged)
    deviations = cifar.find(CIFAR10, other).examine(lambda _: None).deviations
    assert any(f"{name} has the SHA-1 {hashlib.sha1(damaged).hexdigest()}" in sentence for sentence in deviations)


def test_the_folder_itself_will_do(tmp_path):
    source = fake_data.cifar10_binary(tmp_path)
    assert contents(cifar.find(CIFAR10, source / "cifar-10-batches-bin"))[1] == contents(cifar.find(CIFAR10, source))[1]


def test_a_folder_without_it_says_what_was_looked_for_and_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"neither cifar-10-batches-bin nor cifar-10-batches-py.*--download.*kriz"):
        cifar.find(CIFAR10, tmp_path)


def test_missing_files_are_named(tmp_path):
    folder = fake_data.cifar10_binary(tmp_path) / "cifar-10-batches-bin"
    (folder / "data_batch_3.bin").unlink()
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin: .*files data_batch_3.bin, test_batch.bin are not here"):
        cifar.find(CIFAR10, tmp_path)


@pytest.mark.parametrize("length", [0, 1, 3072, 3074, 20 * 3073 - 1])
def test_a_truncated_binary_file_is_an_error(length):
    with pytest.raises(DataError, match=f"data_batch_1.bin: {length:,} bytes are not a whole number of records"):
        cifar.read_binary(bytes(length), Path("data_batch_1.bin"), dataset=CIFAR10)


def test_labels_out_of_range_are_named(tmp_path):
    records = np.zeros((5, 3073), np.uint8)
    records[3:, 0] = 10
    with pytest.raises(DataError, match=r"image 3 has the label 10, expected 0..9 \(2 such labels\)"):
        cifar.read_binary(records.tobytes(), tmp_path, dataset=CIFAR10)


GOOD = {"data": random_pixels(4), "labels": [0, 9, 1, 1]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": [0, 9, 1, 10]}, r"image 3 has the label 10, expected 0\.\.9"),
        ({"labels": [0, -1, 1, 1]}, r"image 1 has the label -1, expected 0\.\.9"),
        ({"labels": [0, 9, 1]}, "4 images and 3 labels"),
        ({"labels": [0, 9, 1, 1.0]}, "'labels' is of type list, expected a list of integers"),
        ({"labels": [0, 9, 1, 10**40]}, "image 3 has the label 10{40}"),
        ({"labels": None}, "'labels' is of type NoneType"),
        ({"data": None}, r"'data' is of type NoneType, expected uint8 \[N, 3072\]"),
        ({"data": random_pixels(4)[:, :-1]}, r"'data' is uint8 \[4, 3071\]"),
        ({"data": random_pixels(4).astype(np.float32)}, r"'data' is float32 \[4, 3072\]"),
    ],
)
def test_other_contents_of_a_pickle_are_refused(change, problem):
    with pytest.raises(DataError, match=f"data_batch_1: .*{problem}"):
        cifar.read_pickle(pickle.dumps({**GOOD, **change}, 4), Path("data_batch_1"), dataset=CIFAR10)


# --- download


@pytest.fixture
def server(tmp_path, monkeypatch):
    """CIFAR-10's archive on a server of our own; gives the folder that is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    fake_data.cifar10_python(tmp_path / "made")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.handle_error = lambda *_: None  # a client that hangs up is none
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{running.server_port}/cifar-10-python.tar.gz"
        monkeypatch.setattr(datasets.CIFAR10, "url", url)
        md5 = hashlib.md5((folder / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
        monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", md5)
        yield folder
        running.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_download_is_unpacked_and_complete_and_is_not_repeated(server, tmp_path):
    target = tmp_path / "downloads"
    cifar.download(CIFAR10, target)
    assert [entry.name for entry in target.iterdir()] == ["cifar-10-batches-py"]
    assert contents(cifar.find(CIFAR10, target))[1].splits["train"].samples == 100
    (server / "cifar-10-python.tar.gz").unlink()
    cifar.download(CIFAR10, target)
    (target / "cifar-10-batches-py" / "data_batch_2").unlink()
    with pytest.raises(DataError, match=r"earlier download is not whole .*data_batch_2.* Remove this folder"):
        cifar.download(CIFAR10, target)


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_a_failed_download_leaves_nothing_behind(server, tmp_path, damage):
    archive = server / "cifar-10-python.tar.gz"
    if damage == "missing":
        archive.unlink()
    else:
        content = archive.read_bytes()
        archive.write_bytes(content[:-100] if damage == "truncated" else content[:-1] + b"x")
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz could not be downloaded \(.*--source"):
        cifar.download(CIFAR10, tmp_path / "downloads")
    assert not list((tmp_path / "downloads").iterdir())
