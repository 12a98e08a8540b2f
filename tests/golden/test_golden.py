"""Test every entry of every exhibit on fixed records, as text."""

from xml.etree import ElementTree

import pytest

from reproduce.records.frames import Frames
from reproduce.records.record import scan
from reproduce.report.headline import Answer, first_screen
from tests.golden import dump


@pytest.fixture(scope="module")
def screen(golden_frames: Frames) -> list[Answer]:
    return first_screen(golden_frames)


@pytest.fixture(scope="module")
def texts(golden_frames: Frames, screen: list[Answer]) -> dict[str, str]:
    return {**dict(dump.texts(golden_frames)), dump.HEADLINES: dump.headlines(screen), dump.PLANNED: dump.plans()}


@pytest.mark.parametrize("key", [*(exhibit.key for exhibit in dump.SHOWN), dump.HEADLINES, dump.CLAIMS, dump.PLANNED])
def test_exhibit_matches_golden_file(key: str, texts: dict[str, str]) -> None:
    """`python -m tests.golden.dump` rewrites the files if a difference is intended."""
    assert texts[key].splitlines() == (dump.HERE / f"{key}.txt").read_text().splitlines()


def test_golden_records_are_unique_and_committed() -> None:
    """The more than 60 records of the golden files are unique and committed."""
    names = dump.names_of_records()
    assert len(names) == len(set(names)) > 60
    committed = {f"{run.cell.scale}/{run.cell.name}" for run in scan(dump.COMMITTED).records}
    assert all(name in committed or (dump.COMMITTED / name).is_file() for name in names)


def test_every_picture_is_drawn_from_committed_records(screen: list[Answer]) -> None:
    """The first screen has three answers and three valid pictures of one network."""
    assert [one.anchor for one in screen] == ["length", "tradeoff", "tradeoff"]
    for one in screen:
        assert ElementTree.fromstring(one.figure.svg).tag.endswith("svg")
    assert all("RevNet-18, width 8" in one.figure.title for one in screen), "one network at one setting"
    assert "not run" in screen[0].figure.svg
