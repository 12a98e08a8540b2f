"""The data sets: their names, and which loader is for which."""

from pathlib import Path

import pytest

from reproduce.cells import catalogue
from reproduce.cells.catalogue import CIFAR10, DIGITS, IMAGENET


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-10", "Cifar_10"])
def test_capitals_and_hyphens_do_not_matter(name):
    assert catalogue.by_name(name) is CIFAR10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifr10", "no data set 'cifr10'; did you mean cifar10, cifar100?"),
        ("mnist", "choose from digits, pydoc, cifar10, cifar100, imagenet32, imagenet"),
    ],
)
def test_unknown_names_list_the_near_ones(name, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        catalogue.by_name(name)


def test_the_default_loader_is_ffcv_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(catalogue, "ffcv_installed", lambda: True)
    assert [dataset.default_loader for dataset in (DIGITS, CIFAR10, IMAGENET)] == ["memory", "ffcv", "ffcv"]
    monkeypatch.setattr(catalogue, "ffcv_installed", lambda: False)
    assert [dataset.default_loader for dataset in (DIGITS, CIFAR10, IMAGENET)] == ["memory", "memory", "torchvision"]


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("data/cifar10", "python -m reproduce data prepare cifar10"),
        ("/mnt/my data/imagenet", "python -m reproduce data prepare imagenet --data-root '/mnt/my data'"),
    ],
)
def test_the_command_prepares_the_folder_that_was_asked_for(folder, command):
    assert catalogue.how_to_prepare(Path(folder)) == command
    assert catalogue.again(Path(folder)) == f"Prepare it again: {command} --replace"
