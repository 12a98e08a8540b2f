"""Choose crop boxes and mirroring of training images as functions of one hash per sample.

All loaders use these boxes, so they agree on them. Loaders may differ in how they read, resize and round pixels.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reproduce.data.sample_hash import Hashes, chain

Integers = NDArray[np.int64]

SCALE = (0.08, 1.0)  # area of a random resized crop, as a fraction of the image's area
RATIO = (3 / 4, 4 / 3)  # width : height of a random resized crop
ATTEMPTS = 10
CENTRE = 224 / 256  # of the shorter side; the usual evaluation resizes to 256 and crops to 224

ONE = np.uint64(1)
BITS_24 = np.uint64(0xFFFFFF)


def choose_mirrored(hashes: Hashes) -> NDArray[np.bool_]:
    """Return whether each sample is mirrored (bit 0 of its hash), bool [N]."""
    return (hashes & ONE).astype(np.bool_)


def choose_padded_crops(hashes: Hashes, padding: int) -> tuple[Integers, Integers]:
    """Return top and left of crops that have the size of the unpadded image.

    Args:
        hashes: One hash per sample, [N].
        padding: Pixels that are added on each side before the crop.

    Returns:
        Tops (bits 8-31 of the hash) and lefts (bits 32-55), int64 [N] in 0 … 2 · padding.

    """
    places = np.uint64(2 * padding + 1)
    tops = (hashes >> np.uint64(8) & BITS_24) % places
    lefts = (hashes >> np.uint64(32) & BITS_24) % places
    return tops.astype(np.int64), lefts.astype(np.int64)


def random_resized_crops(hashes: Hashes, heights: Integers, widths: Integers) -> Integers:
    """Draw the boxes of random resized crops.

    The distribution is torchvision's: the area is uniform in 0.08 … 1 of the image's area, the aspect ratio is
    log-uniform in 3/4 … 4/3, and the position is uniform. If ten such boxes do not fit, the result is the largest
    centred box with an aspect ratio in this range.

    Args:
        hashes: One hash per sample, [N].
        heights: Heights of the images in pixels, [N].
        widths: Widths of the images in pixels, [N].

    Returns:
        Boxes (top, left, height, width), int64 [N, 4].

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
    """Return evaluation boxes (top, left, side, side), centred with 224/256 of the shorter side, int64 [N, 4]."""
    sides = np.maximum(np.rint(CENTRE * np.minimum(heights, widths)).astype(np.int64), 1)
    return np.stack(((heights - sides) // 2, (widths - sides) // 2, sides, sides), axis=1)


def _largest_centred(heights: Integers, widths: Integers) -> Integers:
    h = np.minimum(heights, np.rint(widths / RATIO[0]).astype(np.int64))
    w = np.minimum(widths, np.rint(heights * RATIO[1]).astype(np.int64))
    h, w = np.maximum(h, 1), np.maximum(w, 1)
    return np.stack(((heights - h) // 2, (widths - w) // 2, h, w), axis=1)


def _uniform(hashes: Hashes, number: int, low: float, high: float | Integers) -> NDArray[np.float64]:
    """Return the `number`-th random value of each sample in [low, high), from 53 bits of a hash of its hash."""
    bits = chain(hashes, np.full_like(hashes, number)) >> np.uint64(11)
    unit = bits.astype(np.float64) * 2.0**-53
    return low + unit * (high - low)
