"""Test preparing data sets: completely or not at all, repeatedly, and unofficial data only with a reason."""

import contextlib
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import filelock
import numpy as np
import pytest

from reproduce.cells.catalogue import CIFAR10, CIFAR100, IMAGENET, IMAGENET32
from reproduce.data import manifest
from reproduce.data import prepare as module
from reproduce.data.beton import Beton
from reproduce.data.errors import DataError
from reproduce.data.manifest import Options
from reproduce.data.prepare import prepare
from reproduce.records.storage import StorageFullError
from tests import fake_data, faults

WHY = Options(reason="a test")
MAKERS = {
    CIFAR10: fake_data.cifar10_binary,
    CIFAR100: fake_data.cifar100_binary,
    IMAGENET32: fake_data.imagenet32,
    IMAGENET: fake_data.image_folder,
}


@contextlib.contextmanager
def bar(what, total, unit):
    """Count progress, and check that the total equals the announced one."""
    done = []
    yield done.append
    assert sum(done) == total, (what, unit)


@pytest.fixture
def source(tmp_path):
    return fake_data.cifar10_binary(tmp_path / "source")


@pytest.fixture
def root(tmp_path):
    """Return a folder that does not exist, in a folder that does not exist."""
    return tmp_path / "new" / "data"


def left(root: Path) -> set[str]:
    """Return the content of the folder of prepared data sets, except locks."""
    return {path.name for path in root.iterdir() if not path.name.endswith(".lock")} if root.exists() else set()


@pytest.mark.parametrize(
    ("dataset", "train", "test"),
    [
        (CIFAR10, "b459d76e8ff3f0985816b1d83aecac97", "0c29223f1e4f0a976aaf02229353b574"),
        (CIFAR100, "cfddfe1b0569e9dfd2153438b2681ebe", "3ee207586dccc623ac5147c7600990ba"),
        (IMAGENET32, "e362ce5e11ab6cc45fedcf9c0f01e1ad", "149c28b434b7576c18ce6e773ad47b02"),
        (IMAGENET, "", ""),  # converted by the installed libjpeg
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_prepared_files_are_recorded_and_stable(dataset, train, test, tmp_path, root):
    """Some files were once made from pickles of the same images: records contain these checksums."""
    made, now = prepare(dataset, MAKERS[dataset](tmp_path / "source"), root, WHY, bar)
    folder = root / dataset.name
    assert now
    assert manifest.read(folder) == made
    assert manifest.problems(folder, made, contents=True) == []
    assert {path.name for path in folder.iterdir()} == {*made.files, "manifest.json"}
    assert left(root) == {dataset.name}
    for split, digest in (("train", train), ("test", test)):
        assert made.files[f"{split}.beton"].sha256.startswith(digest)
        labels = Beton(folder / f"{split}.beton").labels
        counts = np.bincount(labels, minlength=made.findings.num_classes)
        assert tuple(counts.tolist()) == made.findings.splits[split].histogram


def test_unofficial_data_need_a_recorded_reason(source, root, monkeypatch):
    """Unofficial data are prepared only with a reason, which is part of the provenance."""
    with pytest.raises(DataError, match=r"not the official CIFAR-10: .*SHA-1.*100 train.*--allow-unofficial") as error:
        prepare(CIFAR10, source, root, Options(), bar)
    assert "100 train images, officially 50,000" in str(error.value)
    assert left(root) == set()
    made, _ = prepare(CIFAR10, source, root, WHY, bar)
    assert not made.official
    assert made.reason == made.provenance()["reason"] == "a test"
    assert made.provenance()["deviations"] == list(made.findings.deviations)
    assert prepare(CIFAR10, source, root, WHY, bar) == (made, False), "again there is nothing to do"
    with pytest.raises(DataError, match=r"prepared before but is not official: .*--allow-unofficial"):
        prepare(CIFAR10, source, root, Options(), bar)
    monkeypatch.setattr("reproduce.data.small_images._wrong_checksum", lambda *_: [])
    monkeypatch.setattr("reproduce.data.small_images._count_deviations", lambda dataset, splits: [])
    made, _ = prepare(CIFAR10, source, root / "official", WHY, bar)
    assert (made.official, made.reason) == (True, ""), "official data need no reason and keep none"


def test_real_cifar10_is_official_except_test_batch(real_cifar10, root):
    """The real CIFAR-10 has no deviation, except possibly the checksum of its test batch."""
    findings = prepare(CIFAR10, real_cifar10, root, WHY, bar)[0].findings
    assert findings.splits["train"].histogram == (5000,) * 10
    assert findings.splits["test"].histogram == (1000,) * 10
    assert [round(value, 3) for value in findings.mean] == [0.491, 0.482, 0.447]  # the well-known values
    if findings.deviations:  # a machine may have the official test batch
        (sentence,) = findings.deviations
        assert sentence.startswith("test_batch.bin has the SHA-1")
        assert sentence.endswith("(the other 5 files are the official ones)")


@pytest.mark.parametrize(
    ("dataset", "file", "damage", "problem"),
    [
        (CIFAR10, "cifar-10-batches-bin/test_batch.bin", lambda content: b"\xff" + content[1:], "label 255"),
        (CIFAR100, "cifar-100-binary/test.bin", lambda content: content[:-5], "whole number of records of 3074"),
        (IMAGENET32, "train_data_batch_9.npz", lambda _: pickle.dumps(os.getcwd), "numpy archive .*not a zip"),
        (IMAGENET, "val/n00000002/val_2_1.JPEG", lambda content: content[:-500], "val_2_1.JPEG .*truncated"),
    ],
)
def test_damaged_source_is_named_and_nothing_is_left(dataset, file, damage, problem, tmp_path, root):
    """A damaged source file raises a DataError that names it, and no file is left."""
    path = MAKERS[dataset](tmp_path / "source") / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=problem) as error:
        prepare(dataset, tmp_path / "source", root, WHY, lambda *_: contextlib.nullcontext(lambda _: None))
    assert path.name in str(error.value)
    assert left(root) == set()


def test_listed_images_must_be_replaced_to_be_copied(tmp_path, root):
    """Images that were prepared with --no-beton are copied only with --replace."""
    source = fake_data.image_folder(tmp_path / "source")
    prepare(IMAGENET, source, root, Options(reason="a test", only_list=True), bar)
    with pytest.raises(DataError, match=r"prepared before with --no-beton.* Add --replace"):
        prepare(IMAGENET, source, root, WHY, bar)
    assert prepare(IMAGENET, source, root, Options(reason="a test", replace=True), bar)[0].has_beton


def test_link_to_another_disk_is_followed(source, tmp_path, root):
    """If the folder is a link to another disk, files are prepared and replaced there."""
    disk = tmp_path / "disk" / "cifar10"
    root.mkdir(parents=True)
    (root / "cifar10").symlink_to(disk)
    for replace in (False, True, True):
        assert prepare(CIFAR10, source, root, Options(reason="a test", replace=replace), bar)[1]
    assert (root / "cifar10").is_symlink()
    assert left(disk.parent) == {"cifar10"}


def test_another_source_needs_replace(source, tmp_path, root):
    """Another source is refused without --replace, and so is a second process."""
    before, _ = prepare(CIFAR10, source, root, WHY, bar)
    other = fake_data.cifar10_binary(tmp_path / "other")
    with pytest.raises(DataError, match=f"prepared before, from {source}. Add --replace"):
        prepare(CIFAR10, other, root, WHY, bar)
    after, now = prepare(CIFAR10, other, root, Options(reason="a test", replace=True), bar)
    assert now
    assert after.source == str(other)
    assert after.files == before.files
    assert left(root) == {"cifar10"}
    with (
        filelock.FileLock(root / ".cifar10.lock"),
        pytest.raises(DataError, match="another process is preparing this data set"),
    ):
        prepare(CIFAR10, source, root, WHY, bar)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [("test.beton", "half", r"is damaged: .*test.beton has 4 bytes"), (manifest.NAME, "[]", "cannot be read")],
)
def test_damaged_files_are_detected_and_replaced(source, root, file, content, problem):
    """Damaged prepared files raise a DataError, and --replace repairs them."""
    prepare(CIFAR10, source, root, WHY, bar)
    (root / "cifar10" / file).write_text(content)
    with pytest.raises(DataError, match=f"{problem}.*Add --replace"):
        prepare(CIFAR10, source, root, WHY, bar)
    made, _ = prepare(CIFAR10, source, root, Options(reason="a test", replace=True), bar)
    assert manifest.problems(root / "cifar10", made, contents=True) == []


def test_unprintable_names_leave_no_unreadable_manifest(tmp_path, root):
    """`data prepare` once succeeded, and then its manifest could not be read."""
    source = fake_data.image_folder(tmp_path / "source")
    (source / "train" / "notes.\x1b").touch()
    made, _ = prepare(IMAGENET, source, root, Options(reason="a\x1btest"), bar)
    assert manifest.read(root / "imagenet") == made
    assert (made.reason, made.findings.notes) == ("a\\x1btest", ("1 file passed over: .\\x1b (1)",))
    odd = source.rename(tmp_path / "source\x1b")
    with pytest.raises(DataError, match=r"the path contains the character '\\x1b'\. Rename"):
        prepare(IMAGENET, odd, root, Options(reason="a test", replace=True), bar)


@pytest.mark.parametrize("replace", [True, False])
def test_foreign_folder_is_not_changed(source, root, replace):
    """A folder that `data prepare` did not create is refused and not changed."""
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10" / "thesis.tex").write_text("ten years of work")
    with pytest.raises(DataError, match="not made by `data prepare`"):
        prepare(CIFAR10, source, root, Options(reason="a test", replace=replace), bar)
    assert (root / "cifar10" / "thesis.tex").read_text() == "ten years of work"


def test_source_inside_target_is_not_changed(tmp_path):
    """A source inside the target folder is refused and not changed."""
    source = fake_data.cifar10_binary(tmp_path / "data" / "cifar10")
    (source / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="it contains the source"):
        prepare(CIFAR10, source, tmp_path / "data", Options(reason="a test", replace=True), bar)
    assert (source / "cifar-10-batches-bin" / "test_batch.bin").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "before"), [("kill", False), ("kill", True), ("full disk", True)])
def test_fault_at_any_operation_can_be_repeated(fault, before, source, tmp_path):
    """After a kill or a full disk at any file operation, repeating gives the undisturbed result and no other files."""
    undisturbed = tmp_path / "undisturbed"
    expected, _ = prepare(CIFAR10, source, undisturbed, WHY, bar)
    options = Options(reason="a test", replace=before)
    start = undisturbed if before else tmp_path / "nothing"
    folders = faults.states(fault, start, lambda folder: prepare(CIFAR10, source, folder, options, bar), tmp_path / "f")
    assert len(folders) > 6
    for folder in folders:
        assert fault == "kill" or left(folder) <= {"cifar10"}, "a full disk leaves no partial files"
        made, now = prepare(CIFAR10, source, folder, WHY, bar)
        assert not (now and before), "the previous state is still there, or was restored"
        assert made == expected
        assert left(folder) == {"cifar10"}
        assert manifest.problems(folder / "cifar10", made, contents=True) == []


def test_too_little_free_space_is_refused_before_writing(source, root, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DataError, match=r"CIFAR-10 needs 0.00 GB, 0.00 GB are free"):
        prepare(CIFAR10, source, root, WHY, bar)
    monkeypatch.undo()
    monkeypatch.setattr(module, "write_atomically", faults.no_room)
    fills = r"no room for CIFAR-10 in .* \(No space left on device\); no partial files"
    with pytest.raises(StorageFullError, match=fills):
        prepare(CIFAR10, source, root, WHY, bar)
    assert left(root) == set()
