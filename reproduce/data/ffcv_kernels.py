"""Decode, crop and normalise samples in loops that Numba compiles once per process.

The loops release Python's global interpreter lock, so several threads can call them in parallel. They write each
sample's pixels directly into the batch.

A table of 256 values per channel converts raw bytes to floats. The table is computed by the loaders' common normalising
function, so the results are bitwise equal to those of the in-memory loader. FFCV (libjpeg-turbo) decodes JPEG files.
Their boxes are resized here and not by OpenCV, whose filter takes twice as long. The filter here is that of Pillow and
torchvision (bilinear, antialiased) without their intermediate rounding.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from reproduce.data import ffcv_library

compiled = njit(nogil=True)
decode = compiled(ffcv_library.imdecode)


@compiled
def raw(
    content: Any, places: Any, tops: Any, lefts: Any, flips: Any, padding: int, size: int, table: Any, out: Any
) -> None:
    """Crop raw images after padding them with black, and normalise them.

    Args:
        content: The file, uint8 [bytes].
        places: Offsets in `content` of the images [size, size, 3], [B].
        tops: Top of each crop, [B].
        lefts: Left of each crop, [B].
        flips: Whether each image is mirrored, [B].
        padding: Pixels on each side.
        size: Height and width of an image.
        table: Normalised value of each byte in each channel, [3, 256].
        out: Buffer for the result, float32 [B, 3, size, size].

    """
    for b in range(len(places)):
        for row in range(size):
            source_row = row + tops[b] - padding
            for column in range(size):
                source_column = (size - 1 - column if flips[b] else column) + lefts[b] - padding
                if 0 <= source_row < size and 0 <= source_column < size:
                    at = places[b] + 3 * (source_row * size + source_column)
                    for channel in range(3):
                        out[b, channel, row, column] = table[channel, content[at + channel]]
                else:
                    for channel in range(3):
                        out[b, channel, row, column] = table[channel, 0]


@compiled
def weights(source: int, target: int) -> Any:
    """Compute the filter that resizes a row of `source` pixels to `target` pixels.

    The filter is a triangle two pixels wide, measured in pixels of the coarser row, and is truncated at the ends of
    the row.

    Returns:
        Index of the first source pixel of each target pixel, int64 [target], and its weights, float32 [target, taps].

    """
    scale = source / target
    radius = max(scale, 1.0)
    taps = min(math.ceil(2 * radius), source)
    firsts = np.empty(target, np.int64)
    weights = np.zeros((target, taps), np.float32)
    for x in range(target):
        centre = (x + 0.5) * scale
        firsts[x] = min(max(int(centre - radius + 0.5), 0), source - taps)
        total = 0.0
        for i in range(taps):
            total += max(1 - abs(firsts[x] + i + 0.5 - centre) / radius, 0.0)
        for i in range(taps):
            weights[x, i] = max(1 - abs(firsts[x] + i + 0.5 - centre) / radius, 0.0) / total
    return firsts, weights


@compiled
def resample(pixels: Any, box: Any, flip: bool, factors: Any, offsets: Any, out: Any) -> None:
    """Resize a box of an image, mirror it if `flip`, and normalise it.

    Args:
        pixels: The image, uint8 [h, w, 3].
        box: Top, left, height and width of the box.
        flip: Whether to mirror the result.
        factors: Factor of each channel, [3].
        offsets: Offset of each channel, added after the factor, [3].
        out: Buffer for the result, float32 [3, size, size].

    """
    top, left, height, width = box
    size = out.shape[1]
    first_rows, row_weights = weights(height, size)
    first_columns, column_weights = weights(width, size)
    line = np.empty(3 * width, np.float32)  # a row of the result before it is resized horizontally
    for row in range(size):
        line[:] = 0
        for tap in range(row_weights.shape[1]):
            weight = row_weights[row, tap]
            source = pixels[top + first_rows[row] + tap].reshape(-1)[3 * left : 3 * (left + width)]
            for i in range(3 * width):
                line[i] += weight * np.float32(source[i])
        for column in range(size):
            at = 3 * first_columns[column]
            red = green = blue = np.float32(0)
            for tap in range(column_weights.shape[1]):
                weight = column_weights[column, tap]
                red += weight * line[at + 3 * tap]
                green += weight * line[at + 3 * tap + 1]
                blue += weight * line[at + 3 * tap + 2]
            to = size - 1 - column if flip else column
            out[0, row, to] = red * factors[0] + offsets[0]
            out[1, row, to] = green * factors[1] + offsets[1]
            out[2, row, to] = blue * factors[2] + offsets[2]


@compiled
def jpeg(
    content: Any, places: Any, sizes: Any, shapes: Any, boxes: Any, flips: Any, factors: Any, offsets: Any, out: Any
) -> Any:
    """Decode JPEG files and resize a box of each.

    Args:
        content: The `.beton` file, uint8 [bytes].
        places: Offset of each JPEG file in `content`, [B].
        sizes: Length of each JPEG file in bytes, [B].
        shapes: Height and width of each image, [B, 2].
        boxes: Box of each image (top, left, height, width), [B, 4].
        flips: Whether each image is mirrored, [B].
        factors: Factor of each channel, [3].
        offsets: Offset of each channel, [3].
        out: Buffer for the result, float32 [B, 3, size, size].

    Returns:
        The decoder's return code for each file, int64 [B]. A code other than 0 is an error or a warning.

    """
    results = np.empty(len(places), np.int64)
    scratch = np.empty(3 * (shapes[:, 0] * shapes[:, 1]).max(), np.uint8)
    for b in range(len(places)):
        height, width = shapes[b]
        pixels = scratch[: 3 * height * width].reshape(height, width, 3)
        data = content[places[b] : places[b] + sizes[b]]
        results[b] = decode(data, pixels, height, width, height, width, 0, 0, 1, 1, False, False)
        resample(pixels, boxes[b], flips[b], factors, offsets, out[b])
    return results
