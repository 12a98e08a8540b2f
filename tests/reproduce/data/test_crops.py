"""Test random crops: torchvision's distribution, computed from hashes."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from reproduce.data.crops import centre_crops, choose_mirrored, choose_padded_crops, random_resized_crops
from reproduce.data.sample_hash import AUGMENTATION, sample_hashes

SAMPLES = 4000


def hashes(seed: int = 0, samples: int = SAMPLES) -> np.ndarray:
    return sample_hashes(seed, 0, AUGMENTATION, samples)


def sizes(height: int, width: int, samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    return np.full(samples, height), np.full(samples, width)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (40, 400), (1, 1), (2, 300)])
def test_crops_are_within_image(height: int, width: int) -> None:
    top, left, h, w = random_resized_crops(hashes(), *sizes(height, width)).T
    assert min(top.min(), left.min()) >= 0
    assert min(h.min(), w.min()) >= 1
    assert (top + h <= height).all()
    assert (left + w <= width).all()


@pytest.mark.parametrize(("height", "width"), [(500, 375), (100, 300)])
def test_crops_follow_torchvision_distribution(height: int, width: int) -> None:
    """For two samples of 4,000 from one distribution, the Kolmogorov-Smirnov distance is below 0.044 in 99.9 %."""
    ours = random_resized_crops(hashes(), *sizes(height, width))
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(224)
    image = torch.empty(3, height, width, device="meta")
    drawn = [transform.make_params([image]) for _ in range(SAMPLES)]
    theirs = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in drawn])
    for column in range(4):
        values = np.arange(max(height, width) + 1)
        mine, other = (np.searchsorted(np.sort(boxes[:, column]), values, "right") for boxes in (ours, theirs))
        assert abs(mine - other).max() / SAMPLES < 0.044
    area, other_area = (np.sort(boxes[:, 2] * boxes[:, 3]) for boxes in (ours, theirs))
    assert abs(area - other_area).max() < 0.1 * height * width


def test_crops_are_stable() -> None:
    """Results of runs on ImageNet depend on them."""
    boxes = [[19, 22, 321, 397], [54, 311, 213, 172], [10, 192, 260, 203], [82, 31, 266, 261]]
    assert random_resized_crops(hashes(0, 4), *sizes(375, 500, 4)).tolist() == boxes


def test_crop_may_have_full_width_or_height() -> None:
    _, _, h, w = random_resized_crops(hashes(0, 1000), *sizes(8, 8, 1000)).T
    assert ((w == 8) & (h < 8)).any()
    assert ((h == 8) & (w < 8)).any()


def test_centre_crops_and_mirroring() -> None:
    """Elongated images get centred crops, evaluation uses centre crops, and half of the images are mirrored."""
    # For an image too narrow for any ratio, the crop is its centre.
    assert (random_resized_crops(hashes(0, 50), *sizes(1000, 10, 50)) == [493, 0, 13, 10]).all()
    assert (random_resized_crops(hashes(0, 50), *sizes(10, 1000, 50)) == [0, 493, 10, 13]).all()
    heights, widths = np.array([256, 256, 512, 3]), np.array([256, 300, 300, 1])
    boxes = [[16, 16, 224, 224], [16, 38, 224, 224], [125, 19, 262, 262], [1, 0, 1, 1]]
    assert centre_crops(heights, widths).tolist() == boxes
    assert abs(choose_mirrored(hashes()).sum() - SAMPLES / 2) < 5 * (SAMPLES / 4) ** 0.5


@pytest.mark.parametrize("padding", [0, 4])
def test_padded_crops_are_uniform(padding: int) -> None:
    """Every offset of a padded crop is equally likely."""
    tops, lefts = choose_padded_crops(hashes(), padding)
    places = 2 * padding + 1
    counts = np.bincount(tops * places + lefts, minlength=places**2)
    expected = SAMPLES / places**2
    assert len(counts) == places**2
    assert abs(counts - expected).max() < 5 * expected**0.5
