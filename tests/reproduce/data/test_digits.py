"""Test the digits: real images, a fixed split, no test image in the training set."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from reproduce.cells.catalogue import DIGITS
from reproduce.data.digits import digits


def test_digits_equal_scikit_learns_without_repetition():
    """Training and test set together contain every image of scikit-learn's digits once, in grey."""
    split = digits(DIGITS.image_size)
    assert (DIGITS.train_samples, DIGITS.test_samples) == (len(split.train.labels), len(split.test.labels))
    both = np.concatenate([split.train.pixels, split.test.pixels])
    assert (both[:, :1] == both).all()
    original = np.round(load_digits().data * (255 / 16)).astype(np.uint8)
    assert sorted(image[0].tobytes() for image in both) == sorted(map(bytes, original))


def test_digits_classes_magnification_and_statistics():
    """The test classes are balanced, enlarged images repeat pixels, and mean and deviation are exact."""
    small, large = digits(8), digits(24).test.pixels
    assert np.bincount(small.test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert all((large[:, :, row::3, column::3] == small.test.pixels).all() for row in range(3) for column in range(3))
    train, _, mean, deviation = small
    assert mean == pytest.approx((train.pixels.mean() / 255,) * 3)
    assert deviation == pytest.approx((train.pixels.std() / 255,) * 3)
