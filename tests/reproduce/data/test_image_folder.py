"""ImageNet's layout: what belongs to the data set, and what can be wrong with it."""

import shutil

import pytest
from torchvision import datasets

from reproduce.cells.catalogue import IMAGENET
from reproduce.data.beton import Beton
from reproduce.data.errors import DataError
from reproduce.data.image_folder import ImageFolder
from reproduce.data.manifest import ImageFile, read_list
from tests import fake_data


@pytest.fixture
def source(tmp_path):
    return fake_data.image_folder(tmp_path / "imagenet")


def examine(source, **options):
    return ImageFolder(IMAGENET, source, **options).examine(lambda _: None)


def write(source, folder, **options):
    """What `write` leaves: the findings, and the names of the training files."""
    images = ImageFolder(IMAGENET, source, **options)
    folder.mkdir()
    findings = images.examine(lambda _: None)
    images.write(folder, lambda _: None)
    return findings, read_list(folder / "train.jsonl")


def truncate(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def test_files_order_and_labels_are_those_of_torchvisions_image_folder(source, tmp_path):
    (source / "train" / "n00000001" / "notes.txt").write_text("no image")
    (source / "train" / ".cache").mkdir()
    (source / "train" / "n00000001" / "train_1_1.JPEG").rename(source / "train" / "n00000001" / "Z.jpg")
    findings, train = write(source, tmp_path / "out", workers=3)
    theirs = datasets.ImageFolder(str(source / "train"), allow_empty=True)
    skipped_folder = theirs.class_to_idx[".cache"]  # it is a class to torchvision, and comes first
    assert skipped_folder == 0
    assert [(str(source / file.path), file.label + 1) for file in train] == theirs.samples
    assert findings.splits["train"].histogram == (4, 4, 4)
    beton = Beton(tmp_path / "out" / "train.beton")
    assert beton.labels.tolist() == [file.label for file in train]
    assert findings.splits["test"].samples == len(Beton(tmp_path / "out" / "test.beton")) == 6


def test_it_is_known_that_it_is_not_the_whole(source):
    findings = examine(source)
    assert findings.deviations == (
        "3 classes, officially 1,000",
        "12 train images, officially 1,281,167",
        "6 test images, officially 50,000",
    )
    shutil.rmtree(source / "val")
    with pytest.raises(DataError, match=r"val: there is no such folder.*image-net.org.*ILSVRC2012_img_train.tar"):
        examine(source)


@pytest.mark.parametrize("share", [0, 0.9])
def test_unreadable_images_are_all_named_with_their_paths(source, share):
    bad = [source / "train" / "n00000001" / "train_1_2.JPEG", source / "val" / "n00000002" / "val_2_1.JPEG"]
    for path in bad:
        truncate(path, share)
    message = rf"2 of 18 images cannot be read: {bad[0]} \(.+\); {bad[1]} \(.+\)\. Get them again"
    with pytest.raises(DataError, match=message):
        examine(source)


def test_a_class_that_only_one_of_both_has_or_that_is_without_images_is_named(tmp_path):
    for number, (here, lacking) in enumerate((("train", "val"), ("val", "train"))):
        source = fake_data.image_folder(tmp_path / f"without {number}")
        for file in (source / here / "n00000001").iterdir():
            file.unlink()
        with pytest.raises(DataError, match=f"{here}: 1 classes are without images: n00000001"):
            examine(source)
        source = fake_data.image_folder(tmp_path / f"one {number}")
        shutil.rmtree(source / lacking / "n00000002")
        with pytest.raises(DataError, match=f"{lacking}: 1 classes of {here}/ have no folder here: n00000002"):
            examine(source)


def test_validation_images_that_are_not_sorted_into_classes_are_seen(source):
    """The archive of the validation images has no folders: the commonest mistake with ImageNet."""
    for folder in list((source / "val").iterdir()):
        for file in folder.iterdir():
            file.rename(source / "val" / file.name)
        folder.rmdir()
    with pytest.raises(DataError, match=r"val: holds no class folders, but 6 loose images\. .*from torchvision"):
        examine(source)


def test_a_list_reads_back_and_a_damaged_one_is_named(source, tmp_path):
    _, train = write(source, tmp_path / "out", beton=False)
    assert train[0] == ImageFile(
        "train/n00000000/train_0_0.JPEG", 0, (source / "train/n00000000/train_0_0.JPEG").stat().st_size
    )
    truncate(tmp_path / "out" / "train.jsonl", 0.51)
    with pytest.raises(DataError, match=r"train.jsonl: is damaged"):
        read_list(tmp_path / "out" / "train.jsonl")
