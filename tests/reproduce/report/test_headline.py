"""The three pictures on top: of the largest scale that has data, and nothing where there are none."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import SWEEPS
from reproduce.records import benchmarks
from reproduce.records.frames import Frames
from reproduce.records.results import Results, read
from reproduce.report.headline import _measured_speeds, headlines
from reproduce.show.content import MINUS, NARROW_SPACE
from tests import fake_records
from tests.golden import dump


def test_without_records_there_is_none(tmp_path: Path) -> None:
    assert headlines(Frames(read(tmp_path))) == []


def test_accuracy_needs_a_pair_and_says_the_scale_and_both_ends(tmp_path: Path) -> None:
    for k, gap in ((1, 5.0), (32, 1.0)):
        for method, reached in ((methods.PETRA, 60.0 - gap), (methods.BACKPROPAGATION, 60.0)):
            fake_records.train(recipes.cell("small", "revnet18", method, k, 0), tmp_path, reached)
    fake_records.train(recipes.cell("paper", "revnet18", methods.PETRA, 1), tmp_path, 94.0)
    (only,) = headlines(Frames(read(tmp_path)))
    assert only.sentence == (
        f"PETRA less backpropagation at the same effective batch, points: {MINUS}5.0 (one seed) at k = 1, "
        f"{MINUS}1.0 (one seed) at k = 32 (scale “small”)."
    ), "a run of the paper's without a pair is no answer"
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 1, 1), tmp_path, 55.1)
    for seed in (0, 1):
        fake_records.train(SWEEPS["small"].baseline("cifar10", "revnet18", seed), tmp_path, 62.0)
    (only,) = headlines(Frames(read(tmp_path)))
    said = only.sentence.replace(NARROW_SPACE, " ")
    assert f"; at a fixed batch, as in the paper, {MINUS}6.9 ± 0.6 (two seeds), {MINUS}3.0 (one seed) (scale" in said


def test_measured_speeds_are_ratios_within_a_round_and_say_their_setting(tmp_path: Path) -> None:
    record = benchmarks.read(dump.COMMITTED / "benchmarks" / "pipelining.json")
    measured, where = _measured_speeds(Frames(Results((), (), (record,))))
    (of,) = (
        of
        for of in record.comparisons
        if (of.first, of.second, of.quantity) == ("PETRA", "autograd, one process", "throughput")
        and of.group.startswith("revnet18")
    )
    assert measured["PETRA"] == pytest.approx(record.spread(of).median)
    assert where == " Marks: two processes, measured (width 32, micro-batches of 16, k = 4; benchmark “pipelining”)."
    assert _measured_speeds(Frames(read(tmp_path))) == ({}, "")


def test_every_picture_is_drawn_from_committed_records(tmp_path: Path) -> None:
    shown = headlines(Frames(read(dump.chosen(tmp_path))))
    assert [one.anchor for one in shown] == ["figure4", "table3", "table5"]
    for one in shown:
        assert ElementTree.fromstring(one.figure.svg).tag.endswith("svg")
        assert len(one.sentence.split(" ")) <= 40
    assert "scale “paper”" in shown[1].sentence
    assert shown[2].figure.caption.endswith("1F1B is ahead on up to 8 devices.")
    assert re.search(r": PETRA [\d.]+ times as fast .* 1F1B [\d.]+ \(scale “small”\)\.$", shown[2].sentence)
