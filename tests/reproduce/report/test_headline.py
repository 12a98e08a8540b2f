"""The three pictures on top: of the largest scale that has data, and nothing where there are none."""

from pathlib import Path
from xml.etree import ElementTree

from petra_core import methods
from reproduce.grids import small
from reproduce.records.frames import Frames
from reproduce.records.results import read
from reproduce.report.headline import headlines
from tests import fake_records
from tests.golden import dump


def test_without_records_there_is_none(tmp_path: Path) -> None:
    assert headlines(Frames(read(tmp_path))) == []


def test_accuracy_needs_a_pair_and_says_the_scale_and_both_ends(tmp_path: Path) -> None:
    for k, gap in ((1, 5.0), (32, 1.0)):
        for method, reached in ((methods.PETRA, 60.0 - gap), (methods.BACKPROPAGATION, 60.0)):
            fake_records.train(small.cell("revnet18", method, k, 0), tmp_path, reached)
    (only,) = headlines(Frames(read(tmp_path)))
    assert only.sentence == (
        "PETRA less backpropagation, points of accuracy: \N{MINUS SIGN}5.0 at k = 1, \N{MINUS SIGN}1.0 at k = 32 "
        "(scale “small”)."
    )


def test_every_picture_is_drawn_from_committed_records(tmp_path: Path) -> None:
    shown = headlines(Frames(read(dump.chosen(tmp_path))))
    assert [one.anchor for one in shown] == ["figure4", "table3", "tradeoff"]
    for one in shown:
        assert ElementTree.fromstring(one.figure.svg).tag.endswith("svg")
        assert len(one.sentence.split()) <= 30
    assert "scale “paper”" in shown[1].sentence
    assert "measured" in shown[2].figure.caption
