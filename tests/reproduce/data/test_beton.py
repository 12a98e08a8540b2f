"""Test .beton files: FFCV's format, always the same bytes, and damage."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reproduce.data.beton import Beton, JpegFiles, RawImages, write_beton
from reproduce.data.errors import DataError
from tests.fake_data import image_folder

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


def test_raw_beton_equals_output_of_ffcv_writer(tmp_path: Path) -> None:
    """The hashes are of files that `ffcv.writer.DatasetWriter` of FFCV 1.0.2 wrote from the same images and labels."""
    for shape, expected in zip(SHAPES, OF_FFCV, strict=True):
        images = raw_images(*shape)
        write_beton(tmp_path / "a.beton", images)
        assert hashlib.sha256((tmp_path / "a.beton").read_bytes()).hexdigest() == expected
        found = Beton(tmp_path / "a.beton").raw()
        assert np.array_equal(found.pixels, images.pixels)
        assert np.array_equal(found.labels, images.labels)


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
    assert file.modes.tolist() == [0] * len(jpegs.paths), "FFCV's number of JPEG"
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


def test_damaged_beton_is_refused_or_harmless(tmp_path: Path) -> None:
    """The reader must not access memory outside a truncated file, or one with a flipped bit."""
    path = tmp_path / "a.beton"
    write_beton(path, raw_images())
    whole = path.read_bytes()
    place, end = (int(number).to_bytes(8, "little") for number in (Beton(path).places[3], len(whole)))
    for data, problem in (
        (whole[:10], "it has 10 bytes"),
        (whole[:-1], "7 samples and a table at .+ make .+ bytes"),
        (whole.replace(place, end), "1 images are outside the pages"),
    ):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"a.beton: not a complete .beton file of images and labels: {problem}"):
            Beton(path)
    path.write_bytes(whole)
    refused = set()
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
                refused.add(position)
            with path.open("r+b") as file:
                file.seek(position)
                file.write(whole[position : position + 1])
    version_and_names = {*range(4), *range(25, 30), *range(1066, 1071)}
    assert refused >= version_and_names | {len(whole) - 8}, "the last size, whose image would not be one of 3 channels"
    assert len(refused) > 250  # the others are labels, and unused bytes
