"""Test the manifest of a prepared data set: it can be read, and it detects changed files."""

import dataclasses
import hashlib
import json

import pytest

from reproduce.cells.catalogue import CIFAR10
from reproduce.data import manifest
from reproduce.data.manifest import Split
from tests.fake_data import CONTENTS, MANIFEST


@pytest.fixture
def made(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / manifest.NAME).write_text(MANIFEST.to_json())
    return MANIFEST


def test_manifest_round_trip_and_provenance(made, tmp_path):
    """A manifest reads back unchanged; its provenance has checksums and official status, but no source path."""
    assert manifest.read(tmp_path) == made
    assert made.official
    assert made.has_beton
    assert made.findings.num_classes == 2
    assert manifest.problems(tmp_path, made, contents=True) == []
    provenance = made.provenance()
    assert provenance["files"]["train.beton"] == hashlib.sha256(b"training").hexdigest()
    assert "there" not in json.dumps(provenance)
    other = dataclasses.replace(made, findings=dataclasses.replace(MANIFEST.findings, deviations=("9 test images",)))
    assert not other.official
    assert not other.provenance()["official"]


def test_only_other_image_counts_are_deviations():
    """Only a number of images that differs from the official one is a deviation."""
    splits = {"train": Split(50_000, (5_000,) * 10), "test": Split(10_000, (1_000,) * 10)}
    assert manifest.deviating_counts(CIFAR10, splits) == []
    splits["test"] = Split(9_000, (900,) * 10)
    assert manifest.deviating_counts(CIFAR10, splits) == ["9,000 test images, officially 10,000"]


def test_formerly_skipped_images_make_data_unofficial(made, tmp_path):
    """Images that an earlier version skipped are read as a deviation."""
    values = json.loads((tmp_path / manifest.NAME).read_text())
    values["findings"] |= {"fingerprint": "ab12", "skipped": ["a.JPEG"], "notes": []}
    (tmp_path / manifest.NAME).write_text(json.dumps(values))
    assert manifest.read(tmp_path).findings.deviations == ("without a.JPEG",)
