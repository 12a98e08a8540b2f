"""The digits: real images, a fixed split, no test image in the training set."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from reproduce.cells.catalogue import DIGITS
from reproduce.data.digits import digits


@pytest.mark.parametrize("size", [8, 16, 24])
def test_sizes_types_and_channels(size):
    train, test = digits(size)
    assert train.pixels.shape == (1437, 3, size, size)
    assert test.pixels.shape == (360, 3, size, size)
    assert train.pixels.dtype == torch.uint8
    assert torch.equal(train.pixels[:, 0], train.pixels[:, 2])
    assert train.pixels.max() == 255
    assert train.pixels.min() == 0


def test_they_are_scikit_learns_digits_each_once():
    split = digits(8)
    both = torch.cat([split.train.pixels[:, 0], split.test.pixels[:, 0]]).flatten(1).numpy()
    original = np.round(load_digits().data * (255 / 16)).astype(np.uint8)
    assert sorted(map(bytes, both)) == sorted(map(bytes, original))


def test_the_catalogue_knows_their_numbers():
    train, test = digits(DIGITS.image_size)
    assert (DIGITS.train_samples, DIGITS.test_samples) == (len(train.labels), len(test.labels))
    assert train.num_classes == DIGITS.num_classes


def test_magnification_repeats_pixels():
    small, large = digits(8).test.pixels, digits(24).test.pixels
    assert all(torch.equal(large[:, :, row::3, column::3], small) for row in range(3) for column in range(3))


def test_the_split_is_fixed_and_every_class_has_its_share():
    first, second = digits(8), digits(8)
    assert torch.equal(first.test.pixels, second.test.pixels)
    assert torch.equal(first.train.labels, second.train.labels)
    assert first.test.labels.bincount().tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]


def test_normalisation_is_that_of_the_training_set():
    train, test = digits(8)
    x = train.normalised(train.pixels)
    assert abs(float(x.mean())) < 1e-5
    assert abs(float(x.std(correction=0)) - 1) < 1e-5
    assert test.mean == train.mean


@pytest.mark.parametrize("size", [0, 4, 12])
def test_sizes_that_are_no_multiple_of_8_are_refused(size):
    with pytest.raises(ValueError, match=f"a multiple of 8, got {size}"):
        digits(size)
