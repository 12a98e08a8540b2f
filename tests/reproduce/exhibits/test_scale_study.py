"""Test the study of scale with invented stage costs: its texts name what is modelled."""

from pathlib import Path

import pytest

from petra_core.prediction.simulation import INSTANT
from reproduce.cells.kinds import StageCostCell
from reproduce.exhibits import scale_study
from reproduce.grids.plans import PLANS
from reproduce.presentation.content import Figure, Role, Table
from tests import fake_records
from tests.reproduce.exhibits.test_table5 import cells, made_up
from tests.sections import made


def test_scale_study_models_devices_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and figure contain the modelled devices, the times and the link rates of the stage costs."""
    fake_records.begin(cells("smoke")[0], tmp_path).finish(
        made_up([0.1] * 10)
    )  # stages of 0.1 s forward, 0.2 s backward
    monkeypatch.setattr(scale_study, "DEVICES", (4, 6))
    section = made(scale_study.EXHIBIT, tmp_path)
    rivalled, links = (block for block in section.blocks if isinstance(block, Table))
    assert "modelled" in rivalled.caption
    assert [row[1].text for row in links.rows] == ["10", "4", "6"]
    assert links.rows[0][2].text == "300.0"
    assert float(links.rows[0][4].value or 0) == pytest.approx(2e6 / 0.3 / (1e9 / 8))
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    assert {row[1].text for row in rivalled.rows} == set(scale_study.LOOKS)
    assert "6 devices: PETRA" in figure.description
    assert section.sentence.startswith("In the model, over links that take no time, PETRA, asynchronous 1F1B is ")


def test_scale_study_without_measurements_is_marked_missing(tmp_path: Path) -> None:
    section = made(scale_study.EXHIBIT, tmp_path)
    assert section.findings[0].role is Role.MISSING


def test_scale_study_needs_only_the_cells_of_table5() -> None:
    assert PLANS["scale_study"]("paper") == cells("paper")
    assert all(isinstance(cell, StageCostCell) for cell in PLANS["scale_study"]("small"))
    assert INSTANT not in scale_study.LINKS.values()
