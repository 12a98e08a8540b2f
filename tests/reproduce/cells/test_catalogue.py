"""Test the data sets: their names and supported loaders."""

from pathlib import Path

import pytest

from reproduce.cells import catalogue
from reproduce.cells.catalogue import CIFAR10, DIGITS, IMAGENET


def test_default_loader_is_ffcv_if_installed(monkeypatch):
    """Without FFCV, CIFAR-10 defaults to the memory loader and ImageNet to torchvision."""
    monkeypatch.setattr(catalogue, "ffcv_installed", lambda: True)
    assert [dataset.default_loader for dataset in (DIGITS, CIFAR10, IMAGENET)] == ["memory", "ffcv", "ffcv"]
    monkeypatch.setattr(catalogue, "ffcv_installed", lambda: False)
    assert [dataset.default_loader for dataset in (DIGITS, CIFAR10, IMAGENET)] == ["memory", "memory", "torchvision"]


@pytest.mark.parametrize("name", ["cifar10", "CIFAR-10", "Cifar_10"])
def test_by_name_ignores_case_and_separators(name):
    assert catalogue.by_name(name) is CIFAR10


def test_prepare_command_contains_folder_and_source():
    """The suggested command prepares the requested folder, with its data root and source."""
    for folder, command, images in (
        ("data/cifar10", "python -m reproduce data prepare cifar10", "--download"),
        (
            "/mnt/my data/imagenet",
            "python -m reproduce data prepare imagenet --data-root '/mnt/my data'",
            "--source DIR",
        ),
    ):
        assert catalogue.how_to_prepare(Path(folder)) == command
        assert catalogue.advise_preparation(Path(folder)) == f"Prepare it again: {command} --replace {images}"
        assert catalogue.advise_preparation(Path(folder), "/my source").endswith(" --replace --source '/my source'")
