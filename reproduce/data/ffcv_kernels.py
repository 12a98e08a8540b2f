"""The inner loops over bytes, compiled by Numba once a process, whatever the number of loaders.

They run without Python's lock, in as many threads as call them, and write each sample's pixels to where they belong
without a step between. Bytes become floats by a table of 256 values a channel: the numbers in it come from the one
function that normalises (`Images.normalised`), so they are bit for bit those of every other loader.
"""

from typing import Any

import numpy as np
from numba import njit

from reproduce.data import ffcv_library

_decode = njit(nogil=True)(ffcv_library.imdecode)
_resize = njit(nogil=True)(ffcv_library.resize_crop)


def _raw(
    content: Any,
    places: Any,
    tops: Any,
    lefts: Any,
    mirrored: Any,
    padding: int,
    height: int,
    width: int,
    table: Any,
    out: Any,
) -> None:
    """Crops of raw images after padding with black: content uint8 [bytes] -> out float32 [B, 3, height, width].

    places [B] say where in `content` an image [height, width, 3] is, tops and lefts [B] the crop; table is [3, 256].
    """
    for b in range(len(places)):
        for row in range(height):
            source_row = row + tops[b] - padding
            for column in range(width):
                source_column = (width - 1 - column if mirrored[b] else column) + lefts[b] - padding
                if 0 <= source_row < height and 0 <= source_column < width:
                    at = places[b] + 3 * (source_row * width + source_column)
                    for channel in range(3):
                        out[b, channel, row, column] = table[channel, content[at + channel]]
                else:
                    for channel in range(3):
                        out[b, channel, row, column] = table[channel, 0]


def _normalise(pixels: Any, mirrored: bool, table: Any, out: Any) -> None:
    """An image: pixels uint8 [H, W, 3] -> out float32 [3, H, W]."""
    height, width = pixels.shape[:2]
    for row in range(height):
        for column in range(width):
            source = width - 1 - column if mirrored else column
            for channel in range(3):
                out[channel, row, column] = table[channel, pixels[row, source, channel]]


def _box(pixels: Any, box: Any, mirrored: bool, table: Any, resized: Any, out: Any) -> None:
    """A box of an image, resized: pixels uint8 [h, w, 3], box [4] -> out float32 [3, H, W]; resized is [H, W, 3]."""
    top, left, height, width = box
    _resize(pixels, top, top + height, left, left + width, resized)
    normalise(resized, mirrored, table, out)


def _jpeg(
    content: Any,
    places: Any,
    sizes: Any,
    heights: Any,
    widths: Any,
    boxes: Any,
    mirrored: Any,
    table: Any,
    out: Any,
    results: Any,
) -> None:
    """Resized boxes of JPEG files: content uint8 [bytes] -> out float32 [B, 3, H, W]; boxes [B, 4].

    results [B] is what the decoder says: not 0 is an error or a warning.
    """
    scratch = np.empty(3 * (heights * widths).max(), np.uint8)
    resized = np.empty((out.shape[2], out.shape[3], 3), np.uint8)
    for b in range(len(places)):
        h, w = heights[b], widths[b]
        pixels = scratch[: 3 * h * w].reshape(h, w, 3)
        data = content[places[b] : places[b] + sizes[b]]
        results[b] = _decode(data, pixels, h, w, h, w, 0, 0, 1, 1, False, False)
        crop(pixels, boxes[b], mirrored[b], table, resized, out[b])


normalise = njit(nogil=True)(_normalise)
crop = njit(nogil=True)(_box)
raw = njit(nogil=True)(_raw)
jpeg = njit(nogil=True)(_jpeg)
