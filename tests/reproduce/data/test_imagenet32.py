"""Test ImageNet32 in its real format, and errors in its files."""

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from reproduce.data import imagenet32
from reproduce.data.errors import DataError
from tests import fake_data
from tests.fake_data import ARRAYS, batch_file, contents, random_pixels


def test_batches_become_one_training_set_with_labels_from_0(tmp_path):
    """Ten batch files of unequal size give one training set in file order, with labels from 0."""
    images, labels = random_pixels(57), list(range(944, 1001))
    (train, test), findings = contents(imagenet32.find(fake_data.imagenet32(tmp_path, images, labels)))
    np.testing.assert_array_equal(train[0].reshape(-1, 3072), images[:52])
    np.testing.assert_array_equal(test[0].reshape(-1, 3072), images[52:])
    assert [*train[1], *test[1]] == list(range(943, 1000))
    assert findings.num_classes == 1000


def test_files_are_found_in_folders_of_the_archives(tmp_path):
    """The files are found in one folder and in the folders that the archives create."""
    flat, files = contents(imagenet32.find(fake_data.imagenet32(tmp_path / "flat")))
    nested = tmp_path / "nested"
    fake_data.imagenet32(nested / "Imagenet32_train_npz")
    (nested / "Imagenet32_val_npz").mkdir()
    (nested / "Imagenet32_train_npz" / "val_data.npz").rename(nested / "Imagenet32_val_npz" / "val_data.npz")
    assert contents(imagenet32.find(nested))[1] == files
    np.testing.assert_array_equal(contents(imagenet32.find(nested))[0][0][0], flat[0][0])


def test_changed_pixel_is_detected_by_the_mean_image(tmp_path):
    """No checksums are published, but every training file contains the mean image of all images."""
    fake_data.imagenet32(tmp_path)
    path = tmp_path / "train_data_batch_4.npz"
    values = dict(np.load(path))
    values["mean"] = values["mean"].astype(np.float32)
    np.savez(path, **values)
    assert not [s for s in imagenet32.find(tmp_path).examine(lambda _: None).deviations if "mean image" in s]
    values["data"][2, 1000] ^= 1
    np.savez(path, **values)
    assert imagenet32.find(tmp_path).examine(lambda _: None).deviations == (
        "52 train images, officially 1,281,167",
        "5 test images, officially 50,000",
        "948 of 1000 classes have no train image, the first is 1",
        "995 of 1000 classes have no test image, the first is 0",
        "the mean image in the files is not that of their 52 images (it differs by up to 0.0192 of 255 grey levels)",
    )


@pytest.mark.parametrize(("save", "dtype"), [(np.savez, np.uint16), (np.savez_compressed, np.dtype(">i4"))])
def test_arrays_of_any_storage_are_read(save, dtype):
    """Compressed archives and labels of any integer type give the same batch."""
    batch = imagenet32.read_batch(batch_file({"labels": ARRAYS["labels"].astype(dtype)}, save), Path("val_data.npz"))
    np.testing.assert_array_equal(batch.pixels.reshape(4, -1), ARRAYS["data"])
    assert batch.labels.tolist() == [0, 999, 499, 0]


class Evil:
    """Call a forbidden function when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_are_never_executed(tmp_path):
    """A pickle in place of an archive or inside it raises a DataError and is not executed."""
    for content in (
        pickle.dumps(Evil(tmp_path / "ran")),
        batch_file({"labels": np.array(Evil(tmp_path / "ran"))}),
    ):
        with pytest.raises(DataError, match=r"not a complete numpy archive \(.*(not a zip file|allow_pickle=False)"):
            imagenet32.read_batch(content, Path("val_data.npz"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bits_give_same_batch_or_error(save):
    """Every array has a checksum in the archive. Only times and unread bits have none."""
    content = batch_file({"data": ARRAYS["data"] // 64}, save)
    whole, refused = imagenet32.read_batch(content, Path("val_data.npz")), 0
    places = random.Random(0).sample(range(len(content)), 200)
    for place in [*places, *range(150), *range(len(content) - 300, len(content))]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        try:
            batch = imagenet32.read_batch(bytes(damaged), Path("val_data.npz"))
        except DataError:
            refused += 1
        else:
            np.testing.assert_array_equal(batch.pixels, whole.pixels)
            np.testing.assert_array_equal(batch.labels, whole.labels)
    assert refused > 200


def test_files_changed_between_reads_are_detected(tmp_path):
    """Files that change between examination and writing raise a DataError, and nothing is written."""
    source = imagenet32.find(fake_data.imagenet32(tmp_path))
    source.examine(lambda _: None)
    fake_data.imagenet32(tmp_path, random_pixels(67))
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="its files changed while they were read"):
        source.write(tmp_path / "out", lambda _: None)
    assert not list((tmp_path / "out").iterdir())
