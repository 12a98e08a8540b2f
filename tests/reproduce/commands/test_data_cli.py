"""Test the data commands as a user runs them."""

import errno
import re

import pytest

from reproduce.cells.catalogue import DATASETS
from tests import fake_data
from tests.processes import call


def invoke(*arguments, code=0):
    """Return the output of a command, including stderr."""
    result = call("data", *arguments, code=code)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def prepare(name, *options, root, code=0):
    return invoke("prepare", name, *options, "--data-root", root, "--allow-unofficial", "a test", code=code)


@pytest.fixture
def source(tmp_path):
    return fake_data.cifar10_binary(tmp_path / "source")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def prepared(source, root):
    return prepare("cifar10", "--source", source, root=root)


def test_data_list_shows_every_data_set_and_how_to_get_it(root):
    text = invoke("list", "--data-root", root)
    for dataset in DATASETS.values():
        contents = "text for masked language modelling" if dataset.text else f"{dataset.num_classes} classes"
        assert f"{dataset.name}  {dataset.title}: {contents}" in text
        assert dataset.built_in or f"not prepared. {dataset.how_to_get}" in text
    assert "ready: comes with a dependency" in text


def test_prepare_prints_findings_and_list_and_check_agree(prepared, source, root, tmp_path):
    """`prepare` prints its findings, `list` and `check` agree with them, and errors have no traceback."""
    assert f"{root / 'cifar10'} was made: NOT OFFICIAL: " in prepared
    assert "(reason given: a test)" in prepared
    assert "train: 100 images, 10 classes of 10" in prepared
    assert "test: 20 images, 10 classes of 2" in prepared
    assert re.search(r"channels: mean 0\.\d{4}, .*; standard deviation 0\.\d{4}", prepared)
    assert re.search(r"train.beton  [\d,]+ bytes  SHA-256 [0-9a-f]{64}", prepared)
    assert "ready for ffcv and memory, NOT OFFICIAL: " in invoke("list", "--data-root", root)
    for names in ((), ("cifar10",), ("CIFAR-10",)):
        assert "cifar10: complete, NOT OFFICIAL: " in invoke("check", *names, "--data-root", root)
    again = prepare("cifar10", "--source", source, root=root)
    assert "exists already, from the same source" in again
    (root / "cifar10").rename(root / "cifar100")
    assert "cifar100: contains cifar10, not cifar100" in invoke("list", "--data-root", root)
    (tmp_path / "file").write_text("")
    text = invoke("prepare", "cifar10", "--source", source, "--data-root", tmp_path / "file" / "data", code=1)
    assert re.search(r"Error: .*Not a directory: .*file/data", text), "without a traceback"


@pytest.mark.parametrize("damage", ["flip", "remove", "manifest"])
def test_check_and_list_report_damage_and_continue(prepared, tmp_path, root, damage):
    """`check` reports a damaged data set with the command that repairs it, and continues with the next."""
    fake_data.cifar100_binary(tmp_path / "more")
    prepare("cifar100", "--source", tmp_path / "more", root=root)
    path = root / "cifar10" / ("manifest.json" if damage == "manifest" else "train.beton")
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:100])
    text = invoke("check", "--data-root", root, code=1)
    assert f"cifar10: DAMAGED\n  {path}" in text
    images = "--download" if damage == "manifest" else f"--source {tmp_path / 'source'}"
    assert text.count(f"data prepare cifar10 --data-root {root} --replace {images}\n") == 1
    assert "cifar100: complete" in text
    # Names and sizes do not show a flipped bit.
    assert ("DAMAGED" in invoke("list", "--data-root", root)) == (damage != "flip")


def test_check_reports_missing_listed_images(tmp_path, root):
    """`check` reports a missing image of a data set that refers to a folder of images."""
    source = fake_data.image_folder(tmp_path / "source")
    prepare("imagenet", "--source", source, "--no-beton", root=root)
    assert "ready for torchvision, NOT OFFICIAL" in invoke("list", "--data-root", root)
    assert "imagenet: complete" in invoke("check", "--data-root", root)
    (source / "val" / "n00000001" / "val_1_0.JPEG").unlink()
    assert "val_1_0.JPEG is missing" in invoke("check", "--data-root", root, code=1)
    source.rename(tmp_path / "elsewhere")
    text = invoke("list", "--data-root", root)
    assert f"the folder of the images, {source}, does not exist" in text
    assert "ready for torchvision" not in text


def test_prepare_downloads_in_one_command(tmp_path, root, monkeypatch):
    """`prepare --download` downloads and prepares a data set in one command."""

    def download(dataset, target):
        fake_data.cifar10_binary(target)

    monkeypatch.setattr("reproduce.data.cifar.download", download)
    prepare("cifar10", "--download", root=root)
    assert (root / "downloads" / "cifar-10-batches-bin").is_dir()
    assert "cifar10: complete" in invoke("check", "--data-root", root)


def test_list_and_check_report_unreadable_files(tmp_path, source, root, monkeypatch):
    """`list` and `check` report files that this user cannot read, and continue."""
    prepare("cifar10", "--source", source, root=root)

    def denied(path, progress):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("reproduce.data.manifest.sha256", denied)
        text = invoke("check", "--data-root", root, code=1)
    assert "train.beton cannot be read (Permission denied)" in text
    assert "test.beton cannot be read (Permission denied)" in text
    for name in ("cifar10", "cifar100"):  # unreadable even for root
        (root / name / "manifest.json").unlink(missing_ok=True)
        (root / name / "manifest.json").mkdir(parents=True)
    for command in (["list"], ["check"]):
        text = invoke(*command, "--data-root", root, code=int(command == ["check"]))
        assert len(re.findall(r"manifest.json: cannot be read: it is a pipe, a device or a folder", text)) == 2
    text = invoke("list", "--data-root", tmp_path / ("x" * 300))
    assert len(re.findall(r"cannot be read \(File name too long\)", text)) == 4


def test_interrupted_prepare_leaves_only_lock_and_exits_130(source, root, monkeypatch):
    """Ctrl-C during `prepare` leaves only the lock file and exits with 130."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduce.data.small_images.write_beton", interrupted)
    text = prepare("cifar10", "--source", source, root=root, code=130)
    assert "the same command starts again" in text
    assert [path.name for path in root.iterdir()] == [".cifar10.lock"]


def test_data_list_obeys_no_color(tmp_path, monkeypatch):
    command = "data", "list", "--data-root", tmp_path
    assert "\x1b[" in call(*command, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call(*command, color=True).stdout


def test_prepare_names_read_only_root_and_remedy(tmp_path, monkeypatch):
    """Test as on a read-only file system, also if the data set exists already."""
    source = fake_data.cifar10_binary(tmp_path / "source")

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / ".cifar10.lock"))

    monkeypatch.setattr("filelock.FileLock.acquire", read_only)
    done = call("data", "prepare", "cifar10", "--source", source, "--data-root", tmp_path, code=1)
    assert "mounted read-only: choose a folder that can be written" in done.stderr
    assert "Errno" not in done.stderr
