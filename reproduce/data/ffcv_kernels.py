"""The inner loops over bytes, compiled by Numba once a process, whatever the number of loaders.

They run without Python's lock, in as many threads as call them, and write each sample's pixels to where they belong
without a step between.

Raw bytes become floats by a table of 256 values a channel: the numbers in it come from the one function that
normalises, so they are bit for bit those of the loader in memory. JPEG files are decoded by FFCV (libjpeg-turbo). Their
boxes are resized here, because OpenCV's filter takes twice the time of this one, which moreover is Pillow's and
torchvision's (bilinear, antialiased), without the roundings in it.
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
    """Crops of raw images after padding with black: content uint8 [bytes] -> out float32 [B, 3, size, size].

    places [B] say where in `content` an image [size, size, 3] is, tops and lefts [B] the crop; table is [3, 256].
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
    """How `source` pixels in a row become `target`: of each the first one used [target], and weights [target, taps].

    A triangle as wide as two pixels of the coarser of the two, cut off at the ends of the row.
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
    """A box of an image, resized, mirrored if `flip`, times factors and plus offsets [3] of the channels.

    pixels uint8 [h, w, 3], box (top, left, height, width) -> out float32 [3, size, size].
    """
    top, left, height, width = box
    size = out.shape[1]
    first_rows, row_weights = weights(height, size)
    first_columns, column_weights = weights(width, size)
    line = np.empty(3 * width, np.float32)  # a row of the result at the width of the source
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
    """Resized boxes [B, 4] of JPEG files: content uint8 [bytes] -> out float32 [B, 3, size, size].

    places and sizes [B] say where in `content` a file is; shapes [B, 2] are the heights and widths of the images.

    Returns:
        What the decoder says of each file, int64 [B]: not 0 is an error or a warning.

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
