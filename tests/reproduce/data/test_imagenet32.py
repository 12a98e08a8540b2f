"""ImageNet32 in its true format, and what can be wrong with it."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from reproduce.data import imagenet32
from reproduce.data.errors import DataError
from tests import fake_data
from tests.fake_data import contents, random_pixels

GOOD = {"data": random_pixels(4), "labels": [1, 1000, 500, 1], "mean": np.full(3072, 127.5)}


def test_ten_batches_of_unequal_size_become_one_training_set_with_labels_from_0(tmp_path):
    images, labels = random_pixels(57), list(range(944, 1001))
    (train, test), findings = contents(imagenet32.find(fake_data.imagenet32(tmp_path, images, labels)))
    np.testing.assert_array_equal(train[0].reshape(-1, 3072), images[:52])
    np.testing.assert_array_equal(test[0].reshape(-1, 3072), images[52:])
    assert [*train[1], *test[1]] == list(range(943, 1000))
    assert findings.num_classes == 1000


def test_files_where_the_archives_put_them_are_found(tmp_path):
    flat, found = contents(imagenet32.find(fake_data.imagenet32(tmp_path / "flat")))
    nested = tmp_path / "nested"
    fake_data.imagenet32(nested / "Imagenet32_train")
    (nested / "Imagenet32_val").mkdir()
    (nested / "Imagenet32_train" / "val_data").rename(nested / "Imagenet32_val" / "val_data")
    assert contents(imagenet32.find(nested))[1] == found
    np.testing.assert_array_equal(contents(imagenet32.find(nested))[0][0][0], flat[0][0])


def test_missing_files_are_named(tmp_path):
    fake_data.imagenet32(tmp_path)
    (tmp_path / "train_data_batch_7").unlink()
    with pytest.raises(DataError, match=r"files train_data_batch_7 are not here.*image-net.org.*accept the terms"):
        imagenet32.find(tmp_path)


def test_it_is_known_not_to_be_the_whole(tmp_path):
    findings = imagenet32.find(fake_data.imagenet32(tmp_path)).examine(lambda _: None)
    assert findings.deviations == (
        "52 train images, officially 1,281,167",
        "948 of 1000 classes have no train image, the first is 1",
        "5 test images, officially 50,000",
        "995 of 1000 classes have no test image, the first is 0",
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_one_grey_level_in_one_image_shows_in_the_mean_image(tmp_path, dtype):
    """No checksums are published, but every training file holds the mean image of them all."""
    fake_data.imagenet32(tmp_path)
    path = tmp_path / "train_data_batch_4"
    values = pickle.loads(path.read_bytes())
    values["mean"] = values["mean"].astype(dtype)
    path.write_bytes(pickle.dumps(values))
    assert not [s for s in imagenet32.find(tmp_path).examine(lambda _: None).deviations if "mean image" in s]
    values["data"][2, 1000] ^= 1
    path.write_bytes(pickle.dumps(values))
    (sentence,) = [s for s in imagenet32.find(tmp_path).examine(lambda _: None).deviations if "mean image" in s]
    assert sentence == "the files state another mean image than their 52 have (off by 0.0192 of 255)"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(protocol):
    batch = imagenet32.read_batch(pickle.dumps(GOOD, protocol), Path("val_data"))
    np.testing.assert_array_equal(batch.pixels.reshape(4, -1), GOOD["data"])
    assert batch.labels.tolist() == [0, 999, 499, 0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"labels": [1, 0, 500, 1]}, r"image 1 has the label 0, expected 1\.\.1000 \(1 such labels\)"),
        ({"labels": [1, 1001, 500, 1]}, r"image 1 has the label 1001, expected 1\.\.1000"),
        ({"labels": [1, 2]}, "4 images and 2 labels"),
        ({"labels": "abcd"}, "'labels' is of type str"),
        (
            {"data": random_pixels(4).reshape(4, 3, 32, 32)},
            r"'data' is uint8 \[4, 3, 32, 32\], expected uint8 \[N, 3072\]",
        ),
        ({"mean": np.zeros(7)}, r"'mean' is float64 \[7\], expected float \[3072\]"),
        ({"mean": "none"}, r"'mean' is of type str"),
        ({"labels": os.system}, "wants to call posix.system.*nothing of it was run"),
    ],
)
def test_other_contents_are_refused(change, problem):
    with pytest.raises(DataError, match=f"val_data: .*{problem}"):
        imagenet32.read_batch(pickle.dumps({**GOOD, **change}, 4), Path("val_data"))


def test_a_truncated_file_is_named(tmp_path):
    fake_data.imagenet32(tmp_path)
    path = tmp_path / "train_data_batch_10"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"train_data_batch_10: not a whole pickle of images and labels"):
        imagenet32.find(tmp_path).examine(lambda _: None)


def test_files_that_change_between_the_two_readings_are_noticed(tmp_path):
    source = imagenet32.find(fake_data.imagenet32(tmp_path))
    findings = source.examine(lambda _: None)
    fake_data.imagenet32(tmp_path, random_pixels(67))
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="its files changed while they were read"):
        source.write(tmp_path / "out", findings, lambda _: None)
    assert not list((tmp_path / "out").iterdir())
