"""Provide handwritten digits from scikit-learn: real images for a machine without network or data sets.

The 1,797 images of 8 x 8 pixels are the test part of the UCI "Optical Recognition of Handwritten Digits". They are
enlarged by an integer factor and repeated in three channels, so that networks for colour images accept them. The split
is fixed: the same 20 % of every class are the test set for all seeds.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from reproduce.cells.catalogue import DIGITS, Channels
from reproduce.data.beton import RawImages

SPLIT_SEED = 0


class Digits(NamedTuple):
    """Training and test images.

    Attributes:
        train: Training images.
        test: Test images.
        mean: Mean of each channel over the training images, in 0..1.
        deviation: Standard deviation of each channel over the training images, in 0..1.

    """

    train: RawImages
    test: RawImages
    mean: Channels
    deviation: Channels


@cache
def digits(image_size: int) -> Digits:
    """Return 1,437 training and 360 test images in three equal channels.

    Args:
        image_size: Height and width in pixels, a multiple of 8.

    """
    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # 17 levels of grey
    factor = image_size // DIGITS.image_size
    pixels = np.tile(grey[:, None].repeat(factor, axis=2).repeat(factor, axis=3), (1, 3, 1, 1))
    parts = train_test_split(
        np.arange(len(grey)), test_size=DIGITS.test_samples, stratify=bunch.target, random_state=SPLIT_SEED
    )
    train, test = (RawImages(pixels[part], bunch.target[part].astype(np.int64)) for part in parts)
    values = torch.from_numpy(train.pixels).double() / 255
    mean, deviation = float(values.mean()), float(values.std(correction=0))
    return Digits(train, test, (mean,) * 3, (deviation,) * 3)
