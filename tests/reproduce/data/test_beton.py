"""Test the .beton writer: FFCV's format, always the same bytes, and no partial files."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reproduce.data import beton
from reproduce.data.beton import Beton, JpegFiles, RawImages, write_beton
from reproduce.data.errors import DataError
from tests.fake_data import image_folder
from tests.faults import full_disk

SHAPES = ((150, 6, 5), (5, 1000, 1100))  # images, height, width; a page contains 2.x of the latter
OF_FFCV = (
    "40cd54d482096a4057cbfbd70bb8ef9a4ccade4de35f974bb72cd55c4abe77c9",
    "56d31db9345629a6819a9a6d32c4bad25b19ec6106641c474a7b23cccc426b90",
)


def raw_images(samples: int = 7, height: int = 6, width: int = 5) -> RawImages:
    pixels = np.random.default_rng(0).integers(256, size=(samples, 3, height, width), dtype=np.uint8)
    return RawImages(pixels, np.arange(samples) % 3)


@pytest.fixture
def jpegs(tmp_path: Path) -> JpegFiles:
    """Write files of several sizes and modes. The first is not a JPEG file, despite its name."""
    paths = sorted((image_folder(tmp_path / "images", 2, 3) / "train").rglob("*.JPEG"))
    return JpegFiles(paths, [0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("shape", [(1, 4, 4), (7, 6, 5), SHAPES[1]], ids=["one", "a page", "more"])
def test_raw_images_round_trip_within_pages(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    """Raw images and labels are read back unchanged, and no image crosses a page boundary."""
    images = raw_images(*shape)
    write_beton(tmp_path / "a.beton", images)
    file = Beton(tmp_path / "a.beton")
    assert len(file) == shape[0]
    assert (file.places // beton.PAGE == (file.places + file.sizes - 1) // beton.PAGE).all()
    assert np.array_equal(file.raw().pixels, images.pixels)
    assert np.array_equal(file.raw().labels, images.labels)


def test_raw_beton_equals_output_of_ffcv_writer(tmp_path: Path) -> None:
    """The hashes are of files that `ffcv.writer.DatasetWriter` of FFCV 1.0.2 wrote from the same images and labels."""
    for shape, expected in zip(SHAPES, OF_FFCV, strict=True):
        write_beton(tmp_path / "a.beton", raw_images(*shape))
        assert hashlib.sha256((tmp_path / "a.beton").read_bytes()).hexdigest() == expected


def test_beton_bytes_do_not_depend_on_workers(tmp_path: Path, jpegs: JpegFiles) -> None:
    """One worker and five workers write the same bytes."""
    many = JpegFiles(list(jpegs.paths) * 20, list(jpegs.labels) * 20)
    write_beton(tmp_path / "one.beton", many)
    write_beton(tmp_path / "several.beton", many, workers=5)
    assert (tmp_path / "one.beton").read_bytes() == (tmp_path / "several.beton").read_bytes()


def test_jpegs_are_stored_unchanged_and_others_converted(tmp_path: Path, jpegs: JpegFiles) -> None:
    """JPEG files in RGB or grey are stored unchanged; all other files are converted to JPEG."""
    write_beton(tmp_path / "a.beton", jpegs)
    file = Beton(tmp_path / "a.beton")
    assert file.labels.tolist() == list(jpegs.labels)
    converted = []
    for number, path in enumerate(jpegs.paths):
        place = file.places[number]
        data = file.path.read_bytes()[place : place + file.sizes[number]]
        with Image.open(path) as source, Image.open(io.BytesIO(data)) as image:
            assert (file.heights[number], file.widths[number]) == (source.height, source.width)
            assert image.format == "JPEG"
            if (source.format, source.mode) in (("JPEG", "RGB"), ("JPEG", "L")):
                assert data == path.read_bytes()
            else:
                converted.append((source.format, source.mode))
                difference = np.asarray(image).astype(int) - np.asarray(source.convert("RGB"))
                assert abs(difference).mean() < 4
    assert converted == [("PNG", "RGB"), ("JPEG", "CMYK")]
    with pytest.raises(DataError, match="expected raw images of one size, got 6 JPEG files and images of 6 sizes"):
        file.raw()


def test_failed_write_leaves_no_partial_beton(tmp_path: Path, jpegs: JpegFiles) -> None:
    """An unreadable image or a full disk leaves no partial file and keeps an existing file."""
    jpegs.paths[4].write_bytes(b"no image at all")
    message = r"train_1_1\.JPEG: cannot be read as an image \(.+Get the file again"
    with pytest.raises(DataError, match=message):
        write_beton(tmp_path / "a.beton", jpegs)
    assert [file.name for file in tmp_path.iterdir()] == ["images"]
    (tmp_path / "a.beton").write_bytes(b"before")
    with full_disk(12_000_000), pytest.raises(OSError, match="File too large"):
        write_beton(tmp_path / "a.beton", raw_images(*SHAPES[1]))
    assert (tmp_path / "a.beton").read_bytes() == b"before"
    assert {file.name for file in tmp_path.iterdir()} == {"images", "a.beton"}


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:10], "it has 10 bytes"),
        (lambda data: data[:-1], "7 samples and a table at .+ make .+ bytes, it has"),
        (lambda data: b"\x03" + data[1:], "expected format version 2, got 3"),
        (lambda data: b"\x02\0\x03" + data[3:], "expected 2 fields, got 3"),
        (lambda data: data[:25] + b"jmage" + data[30:], r"expected the fields .+'jmage'"),
        (lambda data: data[:-8] + b"\x01" + data[-7:], "a raw image does not have 3 bytes per pixel"),
    ],
    ids=["tiny", "cut", "version", "fields", "name", "size"],
)
def test_damaged_beton_is_refused(tmp_path: Path, damage, problem) -> None:
    """A truncated or inconsistent .beton file raises a DataError that names the problem."""
    path = tmp_path / "a.beton"
    write_beton(path, raw_images())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"a.beton: not a complete .beton file of images and labels: {problem}"):
        Beton(path)


def test_flipped_bit_in_beton_is_refused_or_harmless(tmp_path: Path) -> None:
    """The reader must not access memory outside the file, whatever the damaged file contains."""
    path = tmp_path / "a.beton"
    write_beton(path, raw_images())
    whole = path.read_bytes()
    refused = 0
    for position in [*range(60), *range(1064, 1100), *range(2080, 2260), *range(len(whole) - 7 * 24, len(whole))]:
        for bit in (0x01, 0x80):
            with path.open("r+b") as file:
                file.seek(position)
                file.write(bytes([whole[position] ^ bit]))
            try:
                damaged = Beton(path)
                assert (damaged.places >= 0).all()
                assert (damaged.places + damaged.sizes <= len(whole)).all()
            except DataError:
                refused += 1
            with path.open("r+b") as file:
                file.seek(position)
                file.write(whole[position : position + 1])
    assert refused > 500  # the others are labels, and unused bytes
