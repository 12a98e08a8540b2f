"""Test cells with delay compensation: the engine gets the setting, and a stop changes no bit."""

import dataclasses
from pathlib import Path

import pytest
import torch

from petra_core.delay import Rate
from reproduce.cells.kinds import TrainingCell
from reproduce.distributed.group import UnsupportedError
from reproduce.measures import training
from reproduce.measures.context import Context
from reproduce.measures.run_options import RunOptions
from reproduce.records.record import Record
from tests.example_cells import CHAIN
from tests.trainings import assert_stops_change_no_bit, recorded, run

pytestmark = pytest.mark.convolutions

#: 7 micro-batches per epoch, k = 2.
RATE = dataclasses.replace(CHAIN, correction="rate", correction_value=2.0)
AHEAD = dataclasses.replace(CHAIN, forward_weights="predicted", correction="gap_aware")
NADAM = dataclasses.replace(CHAIN, optimizer="nadam", momentum=0.99, learning_rate=1e-3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the record of a training without delay compensation."""
    return run(CHAIN, tmp_path_factory.mktemp("plain"))[0].path


@pytest.mark.parametrize("cell", [AHEAD, NADAM], ids=lambda cell: cell.slug)
def test_stop_with_delay_compensation_changes_no_bit(tmp_path: Path, plain: Path, cell: TrainingCell) -> None:
    """Stop and resume change no bit under any delay compensation, which itself changes the training."""
    assert_stops_change_no_bit([17], cell, tmp_path)
    assert recorded(plain) != recorded(tmp_path / "whole")


def test_two_versions_limit_the_depth(tmp_path: Path) -> None:
    """PipeDream-2BW refuses a depth that needs more than two weight versions, and states the smallest k."""
    cell = dataclasses.replace(CHAIN, method="PIPEDREAM_2BW", accumulation=7)
    with pytest.raises(UnsupportedError, match="raise k to 8 or more"):
        run(cell, tmp_path)
    run(dataclasses.replace(cell, accumulation=8), tmp_path / "deep enough")


def test_rate_constant_is_converted_from_epochs_to_updates(tmp_path: Path) -> None:
    """The constant of the correction `rate` is converted from epochs to updates."""
    trainer = training.Trainer(RATE, Record(tmp_path, RATE), Context(options=RunOptions()))
    try:
        worker = trainer.pipeline.workers[0]
        (rule,) = worker.rules
        assert isinstance(rule, Rate)
        assert rule.value == pytest.approx(2.0 * 7 / 2)
        assert worker.optimizer is not None
        assert isinstance(worker.optimizer, torch.optim.SGD)
    finally:
        trainer.close()
