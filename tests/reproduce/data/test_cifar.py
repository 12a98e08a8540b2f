"""Test CIFAR in its binary version, and errors in its files."""

import functools
import hashlib
import http.server
import tarfile
import threading

import numpy as np
import pytest

from reproduce.cells.catalogue import CIFAR10
from reproduce.data import cifar
from reproduce.data.errors import DataError
from tests import fake_data
from tests.fake_data import contents, random_pixels


def test_cifar_reads_images_and_labels_in_file_order(tmp_path):
    """CIFAR-10's images and labels are read in file order, with exact channel statistics."""
    source = fake_data.cifar10_binary(tmp_path, per_file=20)
    (train, test), findings = contents(cifar.find(CIFAR10, source))
    assert contents(cifar.find(CIFAR10, source / "cifar-10-batches-bin"))[1] == findings
    np.testing.assert_array_equal(train[0][20:40].reshape(20, -1), random_pixels(20, seed=1))
    np.testing.assert_array_equal(test[0].reshape(20, -1), random_pixels(20, seed=5))
    assert train[0].shape == (100, 3, 32, 32)
    assert train[1].tolist() == [*range(10)] * 10
    assert findings.splits["train"].histogram == (10,) * 10
    pixels = train[0].astype(np.float64) / 255
    np.testing.assert_allclose(findings.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(findings.deviation, pixels.std((0, 2, 3)), rtol=1e-10)


def test_missing_cifar_files_are_named(tmp_path):
    """Missing files raise a DataError that names them. tests/reproduce/errors.txt contains errors in files."""
    folder = fake_data.cifar10_binary(tmp_path) / "cifar-10-batches-bin"
    (folder / "data_batch_3.bin").unlink()
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r".*files data_batch_3.bin, test_batch.bin are not here"):
        cifar.find(CIFAR10, tmp_path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serve CIFAR-10's archive, and return the served folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    fake_data.cifar10_binary(tmp_path / "made")
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "made" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.handle_error = lambda *_: None  # a client that disconnects is not an error
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setattr(cifar, "SITE", f"http://127.0.0.1:{running.server_port}")
        md5 = hashlib.md5((folder / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
        monkeypatch.setitem(cifar.ARCHIVES, CIFAR10, ("cifar-10-binary.tar.gz", md5))
        made, layout = tmp_path / "made" / "cifar-10-batches-bin", cifar.LAYOUTS[CIFAR10]
        train, test = (
            {name: hashlib.sha1((made / name).read_bytes()).hexdigest() for name in names}
            for names in (layout.train, layout.test)
        )
        monkeypatch.setitem(cifar.LAYOUTS, CIFAR10, layout._replace(train=train, test=test))
        yield folder
        running.shutdown()
        thread.join()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


# Python 3.12 warns of torchvision's way of unpacking an archive.
@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted tar archives:DeprecationWarning")
def test_download_is_unpacked_verified_and_not_repeated(server, tmp_path):
    """A download is unpacked once, and later damage to its files is reported."""
    target = tmp_path / "downloads"
    cifar.download(CIFAR10, target)
    assert [entry.name for entry in target.iterdir()] == ["cifar-10-batches-bin"]
    assert contents(cifar.find(CIFAR10, target))[1].splits["train"].samples == 100
    (server / "cifar-10-binary.tar.gz").unlink()
    cifar.download(CIFAR10, target)
    file = target / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"damaged \(data_batch_2.bin has the SHA-1 .*\)\. Remove this folder"):
        cifar.download(CIFAR10, target)
    file.unlink()
    with pytest.raises(DataError, match=r"earlier download is damaged .*data_batch_2.bin.* Remove this folder"):
        cifar.download(CIFAR10, target)


@pytest.mark.parametrize("damage", ["missing", "other"])
def test_failed_download_leaves_no_files(server, tmp_path, damage):
    archive = server / "cifar-10-binary.tar.gz"
    if damage == "missing":
        archive.unlink()
    else:
        archive.write_bytes(archive.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz could not be downloaded \(.*--source"):
        cifar.download(CIFAR10, tmp_path / "downloads")
    assert not list((tmp_path / "downloads").iterdir())
