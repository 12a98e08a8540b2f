"""Read and write FFCV's file format, `.beton`: one file with all samples of a data set and their offsets.

    header | two fields | per sample: image (mode, width, height, offset) and label | pages of image bytes | table

Images are raw bytes [height, width, 3] or JPEG files. The bytes of a sample never cross a page boundary. The table at
the end contains the offset and length of each sample.

FFCV's own writer has three defects. If an image cannot be read or the disk is full, the affected process dies and FFCV
waits for it forever. With more than one process, the file differs from run to run. JPEG images are recompressed.

So this module writes the format itself. Several threads read the images and one thread writes them in order, so the
file does not depend on the number of threads. Images that libjpeg can read are copied unchanged. The file is written
under a temporary name and renamed when it is complete. For raw images the file is byte-identical to what FFCV writes
with one worker. The module does not import FFCV, so the in-memory loader can read the same file without it.
"""

import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from petra_core.files import replacing
from reproduce.data.errors import DataError

T = TypeVar("T")

VERSION = 2
HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page_size", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
FIELD = np.dtype([("type", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)])
FIELDS = (("image", 2), ("label", 1))  # name, FFCV's type number
IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
SAMPLE = np.dtype([("image", IMAGE), ("label", "<i8")], align=True)
ENTRY = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
JPEG, RAW = 0, 1  # modes
PAGE = 8 << 20  # page size in bytes; FFCV's default

READ_AHEAD = 16  # images that each thread may be ahead of the writer
QUALITY = 95  # JPEG quality of images that have to be recompressed

#: Exceptions that Pillow raises for a file that it cannot decode.
UNDECODABLE = (OSError, ValueError, SyntaxError, TypeError, RuntimeError, Image.DecompressionBombError)

AGAIN = "Create the file again from its source with `python -m reproduce data prepare`"
ANOTHER = "Give the file of another data set, or prepare this one again"


GREY_16_BITS = ("I;16", "I;16L", "I;16B", "I;16N")  # Pillow's names of these modes
CONVERTIBLE = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def rgb(image: Image.Image) -> Image.Image:
    """Convert an opened image to RGB with 8 bits per channel. Of an image with several frames, use the first.

    Pillow's own conversion clips 16-bit grey values at 255 instead of scaling them.

    Raises:
        ValueError: If the pixel values have no defined range (a float TIFF, for example), or if the image has more
            pixels than Pillow's limit.

    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise ValueError(f"it has {image.width} x {image.height} pixels, expected at most {limit:,} in all")
    mode = image.mode
    if mode in GREY_16_BITS or (mode == "I" and image.format == "PNG"):  # the name in older versions of Pillow
        values = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if mode not in CONVERTIBLE:
        raise ValueError(
            f"its pixels are of the mode {mode}, which has no defined range; save it with 8 bits per channel"
        )
    return image.convert("RGB")


class RawImages(NamedTuple):
    """Images of one size: RGB, uint8 [N, 3, H, W], and their labels, int64 [N]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


class JpegFiles(NamedTuple):
    """Image files of any dimensions, their labels, and their sizes in bytes when they were listed (empty: unknown)."""

    paths: Sequence[Path]
    labels: Sequence[int]
    sizes: Sequence[int] = ()


def reason_of(error: Exception) -> str:
    """Return why a decoder has refused a file."""
    return str(error) or type(error).__name__


def unreadable_image(path: Path, error: Exception) -> DataError:
    """Return the error that a file, which should be an image, cannot be decoded."""
    return DataError(path, f"cannot be read as an image ({reason_of(error)})", "Get the file again")


def write_beton(
    path: Path, images: RawImages | JpegFiles, *, workers: int = 1, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Write images and labels to `path` atomically. The file does not depend on the number of workers.

    JPEG files in colour or grey are copied unchanged; only their headers are checked. All other images (CMYK, or a PNG
    with a wrong suffix) are converted to JPEG in colour.

    Args:
        path: File to write. An existing file is replaced only when the new one is complete.
        images: At least one image.
        workers: Number of threads that read image files.
        progress: Called with the number of samples written since the last call.

    Raises:
        DataError: If a file cannot be decoded.
        OSError: If a file is missing or the disk is full. A file that was at `path` before is kept.

    """
    if isinstance(images, RawImages):
        stored, page = _raw(images.pixels), PAGE
    else:
        largest = max(file.stat().st_size for file in images.paths)
        stored = in_order(_jpeg, images.paths, workers)
        # A power of 2, at least four times the largest file, because a converted image may be larger than its file.
        page = max(PAGE, 1 << (4 * largest - 1).bit_length())
    fields, samples, table = (
        np.zeros(2, FIELD),
        np.zeros(len(images.labels), SAMPLE),
        np.zeros(len(images.labels), ENTRY),
    )
    for field, (name, number) in zip(fields, FIELDS, strict=True):
        field["type"], field["name"][: len(name)] = number, np.frombuffer(name.encode(), np.uint8)
    with replacing(path) as file:

        def fill_page() -> None:
            file.write(bytes(-file.tell() % page))

        file.seek(HEADER.itemsize + fields.nbytes + samples.nbytes)  # written last, when all offsets are known
        fill_page()
        for number, (label, (mode, width, height, data)) in enumerate(zip(images.labels, stored, strict=True)):
            if len(data) > page:
                raise ValueError(f"an image of {len(data)} bytes does not fit in a page of {page}")
            if len(data) > -file.tell() % page:
                fill_page()
            samples[number] = ((mode, width, height, file.tell()), label)
            table[number] = (number, file.tell(), len(data))
            file.write(data)
            progress(1)
        fill_page()
        header = np.array((VERSION, len(FIELDS), page, len(samples), file.tell()), HEADER)
        file.write(table.tobytes())
        file.seek(0)
        file.write(header.tobytes() + fields.tobytes() + samples.tobytes())


class Beton:
    """Open a `.beton` file with the FFCV fields `image` and `label` and check that its parts are consistent.

    The image bytes themselves are not checked.

    Attributes:
        modes: `JPEG` or `RAW` of each sample, uint8 [N].
        heights, widths: Dimensions of each image in pixels, int64 [N].
        labels: Label of each sample, int64 [N].
        places, sizes: Offset and length of each image's bytes in the file, int64 [N].

    Raises:
        FileNotFoundError: If the file does not exist.
        DataError: If the file is truncated, damaged or of another format.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        samples, table = _read_structure(path)
        self.modes = np.ascontiguousarray(samples["image"]["mode"])
        self.heights = samples["image"]["height"].astype(np.int64)
        self.widths = samples["image"]["width"].astype(np.int64)
        self.labels = samples["label"].astype(np.int64)
        self.places = samples["image"]["place"].astype(np.int64)
        self.sizes = table["size"].astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self) -> RawImages:
        """Read all images of a file into memory. They must be raw and of one size.

        Raises:
            DataError: If the file contains JPEG files or images of several sizes.

        """
        height, width = self.raw_size()
        content = np.memmap(self.path, np.uint8, "r")
        pixels = np.empty((len(self), 3, height, width), np.uint8)
        for image, place, size in zip(pixels, self.places, self.sizes, strict=True):
            image[:] = content[place : place + size].reshape(height, width, 3).transpose(2, 0, 1)
        return RawImages(pixels, self.labels)

    def raw_size(self) -> tuple[int, int]:
        """Return the height and width that all images of a file share. The images must be raw.

        Raises:
            DataError: If the file contains JPEG files or images of several sizes.

        """
        sizes = set(zip(self.heights.tolist(), self.widths.tolist(), strict=True))
        if (self.modes != RAW).any() or len(sizes) > 1:
            files = int((self.modes == JPEG).sum())
            contents = f"got {files} JPEG files and images of {len(sizes)} sizes"
            raise DataError(self.path, f"expected raw images of one size, {contents}", ANOTHER)
        return sizes.pop()


_Stored = tuple[int, int, int, bytes]  # mode, width, height, and the bytes to write


def _raw(images: NDArray[np.uint8]) -> Iterator[_Stored]:
    for pixels in images:
        yield RAW, pixels.shape[2], pixels.shape[1], pixels.transpose(1, 2, 0).tobytes()


def in_order(read: Callable[[Path], T], paths: Sequence[Path], workers: int) -> Iterator[T]:
    """Yield `read(path)` of each path, in order, from several threads that read at most `READ_AHEAD` files ahead."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for path in paths:
            pending.append(pool.submit(read, path))
            if len(pending) > READ_AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _jpeg(path: Path) -> _Stored:
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                buffer = io.BytesIO()
                rgb(image).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
                data = buffer.getvalue()
            return JPEG, image.width, image.height, data
    except UNDECODABLE as error:
        raise unreadable_image(path, error) from error


def _read_structure(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read and check the sample descriptions and the table. Both are returned in the order of the samples."""

    def expect(condition: object, problem: str) -> None:
        if not condition:
            raise DataError(path, f"not a complete .beton file of images and labels: {problem}", AGAIN)

    length = path.stat().st_size
    expect(length >= HEADER.itemsize, f"it has {length} bytes")
    header = np.fromfile(path, HEADER, 1)[0]
    expect(header["version"] == VERSION, f"expected format version {VERSION}, got {header['version']}")
    expect(header["fields"] == len(FIELDS), f"expected {len(FIELDS)} fields, got {header['fields']}")
    count, page, end = int(header["samples"]), int(header["page_size"]), int(header["table"])
    expect(count > 0, "it has no samples")
    expect(page >= 2 << 20 and not page & (page - 1), f"a page has {page} bytes")
    expect(
        length == end + count * ENTRY.itemsize,
        f"{count} samples and a table at {end} make {end + count * ENTRY.itemsize} bytes, it has {length}",
    )
    start = HEADER.itemsize + len(FIELDS) * FIELD.itemsize
    expect(start + count * SAMPLE.itemsize <= end, f"{count} samples do not fit before the table at {end}")
    fields = np.fromfile(path, FIELD, len(FIELDS), offset=HEADER.itemsize)
    names_and_types = [
        (field["name"].tobytes().rstrip(b"\0").decode("ascii", "replace"), int(field["type"])) for field in fields
    ]
    expect(names_and_types == list(FIELDS), f"expected the fields (name, type) {list(FIELDS)}, got {names_and_types}")

    samples = np.fromfile(path, SAMPLE, count, offset=start)
    table = np.fromfile(path, ENTRY, count, offset=end)
    table = table[np.argsort(table["sample"], kind="stable")]
    expect((table["sample"] == np.arange(count)).all(), "the table does not have every sample once")
    images = samples["image"]
    expect((images["place"] == table["place"]).all(), "samples and table state different offsets")
    expect((table["size"] > 0).all() and (table["size"] <= page).all(), "an image is empty or larger than a page")
    inside = (table["place"] >= start + count * SAMPLE.itemsize) & (table["place"] <= end - table["size"])
    expect(inside.all(), f"{int((~inside).sum())} images are outside the pages")
    expect(np.isin(images["mode"], (JPEG, RAW)).all(), f"images of unknown modes {np.unique(images['mode']).tolist()}")
    pixels = images["width"].astype(np.int64) * images["height"]
    expect((pixels > 0).all(), "an image has no pixels")
    expect(
        ((images["mode"] == JPEG) | (table["size"] == 3 * pixels)).all(), "a raw image does not have 3 bytes per pixel"
    )
    return samples, table
