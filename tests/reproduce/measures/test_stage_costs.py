"""Test the costs of stages: every stage of a real narrow network is timed, and its messages are counted in bytes."""

import dataclasses
from pathlib import Path

import pytest
import torch

from petra_core import models
from petra_core.prediction import measuring
from petra_core.prediction.measuring import StageAlone
from reproduce.cells.kinds import StageCostCell
from reproduce.grids.plans import PLANS
from reproduce.measures import stage_costs
from reproduce.measures.context import Context, Stopped
from reproduce.measures.stage_costs import measure
from reproduce.records.record import Record
from reproduce.running.execution import execute

pytestmark = pytest.mark.convolutions

CELL = next(cell for cell in PLANS["table5"]("smoke") if isinstance(cell, StageCostCell))


def test_every_stage_of_a_network_is_timed(tmp_path: Path) -> None:
    """Every stage has times, parameters and message sizes, and a stop before a stage is possible."""
    with pytest.raises(Stopped, match="before stage 0 of 10"):
        measure(CELL, Record.for_cell(CELL, tmp_path), Context(should_stop=lambda: True))
    state = execute(Record.for_cell(CELL, tmp_path), Context())
    assert str(state) == "done"
    result = Record.for_cell(CELL, tmp_path).read().result
    assert result is not None
    stages = models.revnet(18, num_classes=10, width=CELL.width)
    assert [row["invertible"] for row in result["stages"]] == [stage.invertible for stage in stages]
    for row, stage in zip(result["stages"], stages, strict=True):
        assert row["parameters"] == 4 * sum(parameter.numel() for parameter in stage.parameters())
        for action in ("forward", "backward", "update"):
            assert 0 < row[action]["lowest"] <= row[action]["median"] <= row[action]["highest"]
    stream = 8 * 4 * 32 * 32 * 4  # batch, channels, pixels, bytes
    assert [row["bytes_up"] for row in result["stages"][:4]] == [2 * stream] * 3 + [stream]
    # A stage that inverts receives its output with the gradient; the stem below stage 1 needs none.
    assert [row["bytes_down"] for row in result["stages"][:4]] == [0, 2 * stream, 4 * stream, 4 * stream]


def test_waiting_micro_batches_follow_staleness_and_k(monkeypatch):
    """A stage is timed with as many waiting micro-batches as its staleness, up to k."""
    waiting = []

    def noted(*arguments, **settings):
        waiting.append(settings["waiting"])
        return StageAlone(*arguments, **settings)

    monkeypatch.setattr(measuring, "StageAlone", noted)
    cell = dataclasses.replace(CELL, method="PETRA", accumulation=3, repetitions=1)
    rows = stage_costs.time_stages(cell, torch.device("cpu"))
    assert waiting == [3] * 8 + [2, 0]
    assert all(row["update"]["median"] > 0 for row in rows)
