"""Where training images are cropped and whether they are mirrored: functions of one hash a sample.

Every loader takes places from here, so that they agree. How the pixels there are read, resized and rounded is each
loader's own.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reproduce.data.sample_hash import Hashes, chain

Integers = NDArray[np.int64]

SCALE = (0.08, 1.0)  # of a random resized crop: part of the image's area
RATIO = (3 / 4, 4 / 3)  # width : height
ATTEMPTS = 10
CENTRE = 224 / 256  # of the shorter side: what is left of an image resized to 256 and cropped to 224

ONE = np.uint64(1)
BITS_24 = np.uint64(0xFFFFFF)


def mirrored(hashes: Hashes) -> NDArray[np.bool_]:
    """Whether each sample is mirrored (bit 0)."""
    return (hashes & ONE).astype(np.bool_)


def padded_crops(hashes: Hashes, padding: int) -> tuple[Integers, Integers]:
    """Top and left of crops of the image's own size after padding, 0 … 2 · padding (bits 8-31 and 32-55)."""
    places = np.uint64(2 * padding + 1)
    tops = (hashes >> np.uint64(8) & BITS_24) % places
    lefts = (hashes >> np.uint64(32) & BITS_24) % places
    return tops.astype(np.int64), lefts.astype(np.int64)


def random_resized_crops(hashes: Hashes, heights: Integers, widths: Integers) -> Integers:
    """Boxes (top, left, height, width) to be resized, int64 [N, 4], from hashes [N], heights and widths [N] in pixels.

    The distribution is torchvision's: area uniform in 0.08 … 1 of the image's, ratio of the sides log-uniform in
    3/4 … 4/3, place uniform. If ten such boxes do not fit, the largest centred box with a ratio in the range.
    """
    boxes = _largest_centred(heights, widths)
    todo = np.arange(len(hashes))
    for attempt in range(ATTEMPTS):
        height, width, hash_ = heights[todo], widths[todo], hashes[todo]
        area = height * width * _uniform(hash_, 4 * attempt, *SCALE)
        ratio = np.exp(_uniform(hash_, 4 * attempt + 1, math.log(RATIO[0]), math.log(RATIO[1])))
        h = np.rint(np.sqrt(area / ratio)).astype(np.int64)
        w = np.rint(np.sqrt(area * ratio)).astype(np.int64)
        top = np.floor(_uniform(hash_, 4 * attempt + 2, 0, height - h + 1)).astype(np.int64)
        left = np.floor(_uniform(hash_, 4 * attempt + 3, 0, width - w + 1)).astype(np.int64)
        fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
        boxes[todo[fits]] = np.stack((top, left, h, w), axis=1)[fits]
        todo = todo[~fits]
        if not len(todo):
            break
    return boxes


def centre_crops(heights: Integers, widths: Integers) -> Integers:
    """Boxes (top, left, side, side) of evaluation, int64 [N, 4]: centred, 224/256 of the shorter side."""
    sides = np.maximum(np.rint(CENTRE * np.minimum(heights, widths)).astype(np.int64), 1)
    return np.stack(((heights - sides) // 2, (widths - sides) // 2, sides, sides), axis=1)


def _largest_centred(heights: Integers, widths: Integers) -> Integers:
    h = np.minimum(heights, np.rint(widths / RATIO[0]).astype(np.int64))
    w = np.minimum(widths, np.rint(heights * RATIO[1]).astype(np.int64))
    h, w = np.maximum(h, 1), np.maximum(w, 1)
    return np.stack(((heights - h) // 2, (widths - w) // 2, h, w), axis=1)


def _uniform(hashes: Hashes, number: int, low: float, high: float | Integers) -> NDArray[np.float64]:
    """The `number`-th random value of each sample, in [low, high): the upper 53 bits of a hash of its hash."""
    bits = chain(hashes, np.full_like(hashes, number)) >> np.uint64(11)
    unit = bits.astype(np.float64) * 2.0**-53
    return low + unit * (high - low)
