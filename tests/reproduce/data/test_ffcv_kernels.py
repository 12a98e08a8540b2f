"""Test the resizing of JPEG files: Pillow's filter without its intermediate rounding."""

import itertools
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

if find_spec("ffcv") is None:
    pytest.skip("FFCV is not installed", allow_module_level=True)

ONE, ZERO = np.ones(3, np.float32), np.zeros(3, np.float32)
BOXES = [  # top, left, height, width
    *((0, 0, 90, 120), (10, 20, 33, 47), (5, 7, 32, 32), (57, 100, 33, 20), (1, 1, 88, 31)),
    *((0, 0, 1, 1), (89, 119, 1, 1), (3, 4, 2, 3), (0, 3, 90, 1), (40, 0, 1, 120)),
]


@pytest.fixture
def kernels() -> ModuleType:
    """Import late, since Numba takes seconds at it, also in processes that only collect the tests."""
    return import_module("reproduce.data.ffcv_kernels")


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(90, 120, 3), dtype=np.uint8)


def resampled(
    kernels: ModuleType, box: tuple[int, ...], size: int, flip: bool = False, factors: np.ndarray = ONE
) -> np.ndarray:
    out = np.full((3, size, size), np.nan, np.float32)
    kernels.resample(image(), np.array(box), flip, factors, ZERO, out)
    return out


@pytest.mark.parametrize("size", [1, 7, 33, 224])
def test_resampling_equals_pillow_up_to_rounding(kernels: ModuleType, size: int) -> None:
    """Crops are resized as Pillow does, up to its intermediate rounding, and mirrored exactly."""
    for box in BOXES:
        top, left, height, width = box
        crop = Image.fromarray(image()).crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        # Pillow rounds to bytes after the columns and again after the rows.
        assert abs(resampled(kernels, box, size) - expected).max() <= 1.01, box
        assert np.array_equal(resampled(kernels, box, size, flip=True), resampled(kernels, box, size)[:, :, ::-1])


def test_resampling_weights_and_channel_factors(kernels: ModuleType) -> None:
    """Weights are non-negative, sum to 1 and stay within the source; every channel has its factor."""
    for source, target in itertools.product((1, 3, 32, 500), (1, 32, 224)):
        firsts, weights = kernels.weights(source, target)
        assert np.allclose(weights.sum(1), 1)
        assert (weights >= 0).all()
        assert (firsts >= 0).all()
        assert (firsts + weights.shape[1] <= source).all()
    factors = np.array([0.5, 2, 3], np.float32)
    assert np.allclose(
        resampled(kernels, BOXES[1], 8, factors=factors), resampled(kernels, BOXES[1], 8) * factors[:, None, None]
    )
