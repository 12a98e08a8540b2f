"""FFCV's file format, `.beton`: one file with all samples of a data set, at known places.

    header | two fields | per sample: image (mode, width, height, place) and label | pages of image bytes | table

Images are raw bytes [height, width, 3] or JPEG files. A sample's bytes lie within one page; the table at the end has
the place and length of each.

FFCV has a writer. When an image cannot be read or the disk is full, the process that noticed dies and FFCV waits for
it for ever; with more than one process, the file differs from run to run; and JPEG images are compressed anew. So we
write the format ourselves: images are read by several threads but written by one, in order, so that the file is the
same for any number of them; what libjpeg can read is stored as it is; and the file appears whole or not at all. For raw
images it is the file that FFCV writes with one worker, byte for byte. Nothing here needs FFCV, so that the loader for
data in memory can read the same file.
"""

import errno
import io
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from petra_core.files import replacing
from reproduce.data.errors import DataError
from reproduce.records.storage import FULL, StorageFullError

VERSION = 2
HEADER = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page_size", "<u4"), ("samples", "<u8"), ("table", "<u8")], align=True
)
FIELD = np.dtype([("type", "<u1"), ("name", "<u1", 16), ("arguments", "<u1", 1024)])
FIELDS = (("image", 2), ("label", 1))  # name, FFCV's number of the type
IMAGE = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
SAMPLE = np.dtype([("image", IMAGE), ("label", "<i8")], align=True)
ENTRY = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
JPEG, RAW = 0, 1  # modes
PAGE = 8 << 20  # bytes; FFCV's default

READ_AHEAD = 16  # images a thread may be ahead of the writer
QUALITY = 95  # of images that have to be compressed anew

#: What Pillow raises for a file that it cannot decode.
UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

AGAIN = "Make the file again from its source with `python -m reproduce data prepare`"


@dataclass(frozen=True)
class RawImages:
    """Images of one size.

    Attributes:
        pixels: uint8 [N, 3, H, W], RGB.
        labels: int64 [N].

    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[1] != 3:
            raise ValueError(f"pixels are uint8 [N, 3, H, W], got {self.pixels.dtype} {list(self.pixels.shape)}")
        if self.labels.dtype != np.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels are int64 [{len(self.pixels)}], got {self.labels.dtype} {list(self.labels.shape)}"
            )


@dataclass(frozen=True)
class JpegFiles:
    """Image files of any sizes.

    Attributes:
        paths: of the files.
        labels: of each.

    """

    paths: Sequence[Path]
    labels: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise ValueError(f"one label a file, got {len(self.paths)} files and {len(self.labels)} labels")


class UnreadableImageError(DataError):
    """A file that should be an image cannot be decoded.

    Attributes:
        path: the file.
        reason: the decoder's words.

    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            path,
            f"cannot be read as an image ({reason})",
            "Get the file again, or leave such images out with --skip-unreadable",
        )
        self.reason = reason

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.reason)  # it may have to come back from a worker process


def write_beton(
    path: Path,
    images: RawImages | JpegFiles,
    *,
    workers: int = 1,
    progress: Callable[[int], object] | None = None,
    on_unreadable: Callable[[UnreadableImageError], object] | None = None,
) -> None:
    """Write all images and labels to `path`: the same bytes for any number of workers.

    A JPEG file in colour or grey is stored as it is, after it was decoded to see that it can be; anything else (CMYK,
    or a PNG under a wrong name) is converted to a JPEG file in colour.

    Args:
        path: the file; its folder exists.
        images: what to write.
        workers: threads that read and decode files.
        progress: called with the number of samples done since the last call, as `tqdm.update` wants it.
        on_unreadable: called for each file that cannot be decoded, which is then left out; without it, it is an error.

    Raises:
        UnreadableImageError: a file cannot be decoded.
        StorageFullError: there is no room; what was at `path` before is still there.
        ValueError: there are no images.

    """
    done = progress or (lambda _: None)
    samples: Iterator[_Stored | UnreadableImageError]
    if isinstance(images, RawImages):
        samples, needed, page = _raw(images), images.pixels.nbytes, PAGE
    else:
        sizes = [_size(file) for file in images.paths]
        # Four times, because a converted image may be larger than its file.
        samples, needed, page = _jpegs(images, workers), sum(sizes), _page(4 * max(sizes, default=0))
    if not len(images.labels):
        raise ValueError(f"no images to write to {path}")
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise _full(path, f"it needs {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free", errno.ENOSPC)
    try:
        with replacing(path) as file:
            writer = _Writer(file, len(images.labels), page)
            for sample in samples:
                if not isinstance(sample, UnreadableImageError):
                    writer.add(sample)
                elif on_unreadable is None:
                    raise sample
                else:
                    on_unreadable(sample)
                done(1)
            if not writer.entries:
                raise ValueError(f"no images to write to {path}: not one of {len(images.labels)} can be read")
            writer.finish()
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _full(path, error.strerror or "the disk is full", error.errno) from error


class Beton:
    """A `.beton` file whose parts have been seen to fit together.

    Args:
        path: the file, with FFCV fields `image` and `label`.

    Attributes:
        path: the file.
        modes: `JPEG` or `RAW`, of each sample, uint8 [N].
        heights, widths: of each image, pixels, int64 [N].
        labels: int64 [N].
        places, sizes: where in the file the bytes of each image are, and how many, int64 [N].

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it is cut off, damaged or something else. Image bytes are not looked at.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            samples, table = _read_structure(path)
        except _DamagedError as error:
            raise DataError(path, f"not a whole .beton file of images and labels: {error}", AGAIN) from None
        self.modes = np.ascontiguousarray(samples["image"]["mode"])
        self.heights = samples["image"]["height"].astype(np.int64)
        self.widths = samples["image"]["width"].astype(np.int64)
        self.labels = samples["label"].astype(np.int64)
        self.places = samples["image"]["place"].astype(np.int64)
        self.sizes = table["size"].astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self) -> RawImages:
        """All images of a file of raw images of one size, read into memory.

        Raises:
            DataError: they are JPEG files or of several sizes.

        """
        height, width = self.raw_size()
        content = np.memmap(self.path, np.uint8, "r")
        pixels = np.empty((len(self), height, width, 3), np.uint8)
        for image, place, size in zip(pixels.reshape(len(self), -1), self.places, self.sizes, strict=True):
            image[:] = content[place : place + size]
        return RawImages(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), self.labels)

    def raw_size(self) -> tuple[int, int]:
        """Height and width of the images of a file of raw images of one size. Raises: as `raw`."""
        sizes = set(zip(self.heights.tolist(), self.widths.tolist(), strict=True))
        if (self.modes != RAW).any() or len(sizes) > 1:
            raise DataError(
                self.path,
                f"expected raw images of one size, got {int((self.modes == JPEG).sum())} JPEG files and images of "
                f"{len(sizes)} sizes",
                "Give the file of another data set, or prepare this one again",
            )
        return sizes.pop()


class _Stored(NamedTuple):
    """A sample as it goes into the file."""

    mode: int
    height: int
    width: int
    data: bytes
    label: int


class _Writer:
    """Samples one after another; places and labels at the end, when they are known."""

    def __init__(self, file: IO[bytes], capacity: int, page: int) -> None:
        """Into an empty file, up to `capacity` samples."""
        self._file, self._page = file, page
        self._fields = np.zeros(len(FIELDS), FIELD)
        for field, (name, number) in zip(self._fields, FIELDS, strict=True):
            field["type"] = number
            field["name"][: len(name)] = np.frombuffer(name.encode(), np.uint8)
        self._samples = np.zeros(capacity, SAMPLE)
        self.entries: list[tuple[int, int, int]] = []  # sample, place, size
        self._place = HEADER.itemsize + self._fields.nbytes + self._samples.nbytes
        self._file.write(bytes(self._place))
        self._fill_page()

    def add(self, sample: _Stored) -> None:
        """Append a sample."""
        size = len(sample.data)
        if size > self._page:
            raise ValueError(f"an image of {size} bytes does not fit in a page of {self._page}")
        if size > -self._place % self._page:
            self._fill_page()
        number = len(self.entries)
        self._samples[number] = ((sample.mode, sample.width, sample.height, self._place), sample.label)
        self.entries.append((number, self._place, size))
        self._file.write(sample.data)
        self._place += size

    def finish(self) -> None:
        """Write what is known only now."""
        self._fill_page()
        self._file.write(np.array(self.entries, ENTRY).tobytes())
        header = np.array((VERSION, len(FIELDS), self._page, len(self.entries), self._place), HEADER)
        self._file.seek(0)
        self._file.write(header.tobytes() + self._fields.tobytes() + self._samples.tobytes())

    def _fill_page(self) -> None:
        rest = -self._place % self._page
        self._file.write(bytes(rest))
        self._place += rest


def _raw(images: RawImages) -> Iterator[_Stored]:
    height, width = images.pixels.shape[2:]
    for pixels, label in zip(images.pixels, images.labels.tolist(), strict=True):
        yield _Stored(RAW, height, width, pixels.transpose(1, 2, 0).tobytes(), label)


def _jpegs(images: JpegFiles, workers: int) -> Iterator[_Stored | UnreadableImageError]:
    """In order, read by several threads (Pillow decodes outside Python's lock), which do not run far ahead."""
    pending: deque[Future[_Stored | UnreadableImageError]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for path, label in zip(images.paths, images.labels, strict=True):
            pending.append(pool.submit(_read, path, label))
            if len(pending) > READ_AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _read(path: Path, label: int) -> _Stored | UnreadableImageError:
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            image.load()  # decodes all of it
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                buffer = io.BytesIO()
                image.convert("RGB").save(buffer, "JPEG", quality=QUALITY, subsampling=0)
                data = buffer.getvalue()
            return _Stored(JPEG, image.height, image.width, data, label)
    except UNDECODABLE as error:
        return UnreadableImageError(path, str(error) or type(error).__name__)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # it is missing: an unreadable image when its turn comes


def _page(size: int) -> int:
    """Bytes of a page that holds an image of this size: a power of 2."""
    return max(PAGE, 1 << (size - 1).bit_length())


def _full(path: Path, reason: str, number: int) -> StorageFullError:
    return StorageFullError(
        number, f"no room to write {path} ({reason}). Nothing was left of it; free some space and try again"
    )


class _DamagedError(Exception):
    """Two parts of a file contradict each other."""


def _read_structure(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Descriptions of the samples and entries of the table, in the samples' order. Raises: _DamagedError."""

    def expect(condition: object, problem: str) -> None:
        if not condition:
            raise _DamagedError(problem)

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
    found = [(field["name"].tobytes().rstrip(b"\0").decode("ascii", "replace"), int(field["type"])) for field in fields]
    expect(found == list(FIELDS), f"expected the fields (name, type) {list(FIELDS)}, got {found}")

    samples = np.fromfile(path, SAMPLE, count, offset=start)
    table = np.fromfile(path, ENTRY, count, offset=end)
    table = table[np.argsort(table["sample"], kind="stable")]
    expect((table["sample"] == np.arange(count)).all(), "the table does not have every sample once")
    images = samples["image"]
    expect((images["place"] == table["place"]).all(), "samples and table name different places")
    expect((table["size"] > 0).all() and (table["size"] <= page).all(), "an image is empty or larger than a page")
    inside = (table["place"] >= start + count * SAMPLE.itemsize) & (table["place"] <= end - table["size"])
    expect(inside.all(), f"{int((~inside).sum())} images lie outside the pages")
    expect(np.isin(images["mode"], (JPEG, RAW)).all(), f"images of unknown modes {np.unique(images['mode']).tolist()}")
    pixels = images["width"].astype(np.int64) * images["height"]
    expect((pixels > 0).all(), "an image has no pixels")
    expect(
        ((images["mode"] == JPEG) | (table["size"] == 3 * pixels)).all(), "a raw image has not 3 bytes for each pixel"
    )
    return samples, table
