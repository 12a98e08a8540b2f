"""Test ImageNet's layout: the files that belong to the data set, and errors in them."""

import errno
import io
import os
import shutil
import struct

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from reproduce.cells.catalogue import IMAGENET
from reproduce.data.beton import Beton, JpegFiles
from reproduce.data.errors import DataError
from reproduce.data.image_folder import ImageFolder
from reproduce.data.loader import BatchFormat, Evaluation
from reproduce.data.manifest import read_list
from reproduce.data.torchvision_loader import ImageFiles
from tests import fake_data


@pytest.fixture
def source(tmp_path):
    return fake_data.image_folder(tmp_path / "imagenet")


def examine(source, **options):
    return ImageFolder(IMAGENET, source, **options).examine(lambda _: None)


def write(source, folder, **options):
    """Return the findings of `write`, and the names of the training files."""
    images = ImageFolder(IMAGENET, source, **options)
    folder.mkdir()
    findings = images.examine(lambda _: None)
    images.write(folder, lambda _: None)
    return findings, read_list(folder / "train.jsonl")


def truncate(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def test_files_and_labels_equal_torchvision_image_folder(source, tmp_path):
    """Files, order and labels are those of torchvision's ImageFolder without its hidden folder."""
    (source / "train" / "n00000001" / "notes.txt").write_text("no image")
    (source / "train" / ".cache").mkdir()
    (source / "train" / "n00000001" / "train_1_1.JPEG").rename(source / "train" / "n00000001" / "Z.jpg")
    findings, train = write(source, tmp_path / "out", workers=3)
    theirs = datasets.ImageFolder(str(source / "train"), allow_empty=True)
    skipped_folder = theirs.class_to_idx[".cache"]  # a class for torchvision, and the first one
    assert skipped_folder == 0
    assert [(str(source / file.path), file.label + 1) for file in train] == theirs.samples
    assert findings.splits["train"].histogram == (4, 4, 4)
    beton = Beton(tmp_path / "out" / "train.beton")
    assert beton.labels.tolist() == [file.label for file in train]
    assert findings.splits["test"].samples == len(Beton(tmp_path / "out" / "test.beton")) == 6


def test_missing_classes_and_images_are_deviations(source):
    assert examine(source).deviations == (
        "3 classes, officially 1,000",
        "12 train images, officially 1,281,167",
        "6 test images, officially 50,000",
    )


@pytest.mark.parametrize("share", [0, 0.9])
def test_all_unreadable_images_are_named(source, share):
    """The error for unreadable images lists the path of each of them."""
    bad = [source / "train" / "n00000001" / "train_1_2.JPEG", *sorted((source / "val").rglob("*.JPEG"))]
    for path in bad:
        truncate(path, share)
    named = "; ".join(rf"{path} \(.+\)" for path in bad)
    message = rf"7 of 18 images cannot be read: {named}\. Get them again"
    with pytest.raises(DataError, match=message):
        examine(source)


def tiff_without_width():
    """Return a TIFF of two frames, the second of which has no width."""
    content, frame = io.BytesIO(), Image.new("L", (4, 4))
    frame.save(content, "TIFF", save_all=True, append_images=[frame])
    before, width, after = content.getvalue().rpartition(struct.pack("<HH", 256, 4))
    assert width
    return before + bytes(4) + after


@pytest.mark.parametrize("content", [tiff_without_width(), b"DDS |" + bytes(123)])
def test_any_error_of_pillow_names_the_image(source, content):
    """Pillow raises errors of many kinds for damaged files, such as a TypeError for a TIFF without a width."""
    (source / "val" / "n00000000" / "damaged.png").write_bytes(content)
    with pytest.raises(DataError, match=r"1 of 19 images cannot be read: .*damaged.png \(.+\)\. Get them again"):
        examine(source)


def empty(folder):
    for file in folder.iterdir():
        file.unlink()


def without_class_folders(source):
    """Move the validation images out of their folders: their archive has none, which is the most common mistake."""
    for file in (source / "val").rglob("*.JPEG"):
        file.rename(source / "val" / file.name)
    for folder in (source / "val").glob("n*"):
        folder.rmdir()


def training_as_test_set(source):
    shutil.rmtree(source / "val")
    (source / "val").symlink_to("train")


SAME_FOLDER = r"is the same folder as .*, one of them through a link\. Remove the link"
SAME_IMAGE = r"copy.jpeg: is the same image as .*train_1_0"
LINKED = "../../train/n00000001/train_1_0.JPEG"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: shutil.rmtree(s / "val"), "val: there is no such folder.*image-net.org.*ILSVRC2012_img_train.tar"),
        (lambda s: empty(s / "train" / "n00000001"), "train: 1 classes are without images: n00000001"),
        (lambda s: empty(s / "val" / "n00000001"), "val: 1 classes are without images: n00000001"),
        (lambda s: shutil.rmtree(s / "val/n00000002"), "val: 1 classes of train/ have no folder here: n00000002"),
        (lambda s: shutil.rmtree(s / "train/n00000002"), "train: 1 classes of val/ have no folder here: n00000002"),
        (without_class_folders, r"val: contains no class folders, but 6 loose images\. .*from torchvision"),
        # A link that leads back would repeat a class, or add training images to the test set.
        (lambda s: (s / "train/n00000001/again").symlink_to("../n00000000"), SAME_FOLDER),
        (lambda s: (s / "train/n00000001/itself").symlink_to("."), SAME_FOLDER),
        (lambda s: [(s / split / "n00000003").symlink_to("n00000001") for split in ("train", "val")], SAME_FOLDER),
        (training_as_test_set, SAME_FOLDER),
        (lambda s: (s / "train/n00000002/copy.jpeg").symlink_to(LINKED), SAME_IMAGE),
        (lambda s: (s / "val/n00000002/copy.jpeg").symlink_to(LINKED), SAME_IMAGE),
        (lambda s: os.mkfifo(s / "train/n00000001/x.jpg"), "n00000001.*is not a regular file"),
        (lambda s: (s / "train/n00000001/x.jpg").symlink_to("nowhere.jpg"), "n00000001.*(not a regular file|be read)"),
    ],
)
def test_wrong_folders_and_links_are_refused(source, change, problem):
    """Folders that are not those of the data set raise a DataError that names the path."""
    change(source)
    with pytest.raises(DataError, match=problem):
        examine(source)


def test_images_may_be_links(source, tmp_path):
    """The images are elsewhere, once each, possibly below the source."""
    for number, file in enumerate(sorted((source / "val").rglob("*.JPEG"))):
        away = source / "all" / f"{number}.JPEG"
        away.parent.mkdir(exist_ok=True)
        file.rename(away)
        file.symlink_to(away)
    assert examine(source).splits["test"].samples == 6
    (source / "val" / "n00000000" / "once more.JPEG").symlink_to(source / "all" / "0.JPEG")
    with pytest.raises(DataError, match=r"is the same image as .*, one of them through a link"):
        examine(source)


def test_unreadable_folder_is_refused(source, monkeypatch):
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("n00000001"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"n00000001.*cannot be read"):
        examine(source)


def _save(path, mode, size=(40, 40)):
    """Save an image in which every value is half of the maximum."""
    if mode == "16 bits":
        Image.fromarray(np.full(size, 1 << 15, np.uint16)).save(path, "PNG")
    elif mode == "32 bits":
        Image.fromarray(np.full(size, 1 << 15, np.int32)).save(path, "TIFF")
    elif mode == "float":
        Image.fromarray(np.full(size, 0.5, np.float32)).save(path, "TIFF")
    else:
        Image.new(mode, size, {"1": 1, "L": 128, "LA": (128, 9), "P": 0}.get(mode, (128, 128, 128))).save(path, "PNG")


@pytest.mark.parametrize("mode", ["16 bits", "32 bits", "float", "1", "L", "LA", "P", "RGB"])
def test_pixel_modes_are_scaled_to_8_bits_or_refused(source, tmp_path, mode):
    """Both loaders do so. Pillow turns every grey value above 255 into white."""
    odd = source / "train" / "n00000001" / "odd.png"
    _save(odd, mode)
    if mode in ("32 bits", "float"):
        with pytest.raises(DataError, match=r"1 of 19 images cannot be read: .*odd\.png \(its pixels are of the mode"):
            examine(source)
        return
    write(source, tmp_path / "out")
    expected = {"1": 255, "P": 0}.get(mode, 128)
    beton = Beton(tmp_path / "out" / "train.beton")
    [place] = [number for number, size in enumerate(beton.heights) if size == 40]
    start, size = int(beton.places[place]), int(beton.sizes[place])
    stored = Image.open(io.BytesIO(beton.path.read_bytes()[start : start + size]))
    batch_format = BatchFormat(num_classes=3, image_size=32, mean=(0.0,) * 3, deviation=(1 / 255,) * 3)
    [(pixels, _)] = Evaluation(ImageFiles(JpegFiles([odd], [0]), batch_format, augment=False), 1)
    for mean in (np.asarray(stored.convert("RGB")).mean(), pixels.mean().item()):
        assert mean == pytest.approx(expected, abs=1)


def test_skipped_files_and_extra_frames_are_counted(source, tmp_path):
    """Notes count the skipped files by suffix, and the images with several frames."""
    folder = source / "train" / "n00000001"
    (folder / "moving.gif").write_bytes(b"GIF89a")
    (folder / "notes").touch()
    (folder / ".DS_Store").touch()
    (source / "val" / "loose.png").touch()
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "moving.webp", save_all=True, append_images=frames[1:])
    findings, _ = write(source, tmp_path / "out")
    assert findings.notes == (
        "3 files passed over: no suffix (1), .gif (1), .png (1)",
        "1 image of several frames: the first frame is used",
    )
