"""Test cells of forward gradients: the common loop trains them, they stop anywhere, and epochs have cosines."""

import dataclasses
from pathlib import Path

import pytest
import torch

from reproduce.cells.kinds import BLOCK_MODELS, ForwardGradientCell, TrainingCell
from reproduce.distributed.group import UnsupportedError
from reproduce.grids.plans.forward_gradients import cells
from reproduce.measures import forward_gradients, training
from reproduce.measures.context import Context
from reproduce.records.record import Record
from tests.trainings import assert_stops_change_no_bit, recorded, run

pytestmark = pytest.mark.convolutions

SMOKE = next(cell for cell in cells("smoke") if isinstance(cell, ForwardGradientCell))
TINY = dataclasses.replace(SMOKE, width=2, batch_size=128, epochs=3, drops=(2,), learning_rate=0.1)


@pytest.mark.parametrize(
    "cell",
    [
        dataclasses.replace(TINY, target="local", guess="redrawn"),
        dataclasses.replace(TINY, guess="gaussian", space="activations", derivative="jvp"),
    ],
    ids=["redrawn", "gaussian, jvp"],
)
def test_stop_of_forward_gradients_changes_no_bit(tmp_path: Path, cell: ForwardGradientCell) -> None:
    """A forward-gradient run that is stopped in epoch 2 and resumed ends with the same bits."""
    assert_stops_change_no_bit([4], dataclasses.replace(cell, batch_size=400, epochs=2, drops=()), tmp_path)
    cosines = recorded(tmp_path / "whole")[0][-1]["measured"]["guess_cosine"]
    assert (cosines == [None] * 8) == (cell.derivative == "jvp"), "in forward mode the target's length is unknown"


@pytest.mark.parametrize("model", BLOCK_MODELS)
def test_training_learns_and_records_cosines_of_blocks(tmp_path: Path, model: str) -> None:
    """With an exact guess, the method equals that of the pipeline, from the same initial weights."""
    exact = dataclasses.replace(TINY, model=model, guess="global", learning_rate=0.05)
    record, _ = run(exact, tmp_path / "exact")
    lines = record.read().metrics
    for line in lines:
        assert line["probes"] == 11
        assert line["measured"]["guess_cosine"] == [*[pytest.approx(1.0, abs=1e-4)] * (BLOCK_MODELS[model] - 1), None]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    plain = {field.name: getattr(exact, field.name) for field in dataclasses.fields(TrainingCell)}
    other, _ = run(TrainingCell(**plain | {"method": "BACKPROPAGATION"}), tmp_path / "plain")
    losses = [[line["train_loss"] for line in one.read().metrics] for one in (record, other)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.02)
    assert record.read().result["parameters"] == other.read().result["parameters"]
    assert len(record.read().result["stages"]) == BLOCK_MODELS[model]


def test_local_guesses_align_with_target_and_noise_does_not(tmp_path: Path) -> None:
    """Compare for the block below the head, over the last epoch: the paper's idea depends on it."""
    cosine = {}
    for guess in ("local", "gaussian"):
        short = {"epochs": 2, "drops": (), "learning_rate": 0.02}
        cell = dataclasses.replace(TINY, width=4, batch_size=32, guess=guess, **short)
        cosine[guess] = run(cell, tmp_path / guess)[0].read().metrics[-1]["measured"]["guess_cosine"][-2]
    assert cosine["local"] > 0.1 > abs(cosine["gaussian"])


def test_pipeline_options_are_refused(tmp_path: Path) -> None:
    """Forward gradients refuse options that only a pipeline supports."""
    with pytest.raises(UnsupportedError, match="leave out --processes, --cuda-graphs, --compile and --trace"):
        run(TINY, tmp_path, compiled=True)


def test_auxiliary_networks_follow_the_cell(tmp_path: Path) -> None:
    """The auxiliary networks have the kind and the shapes that the cell requests."""
    shapes = {}
    for kind in ("mlp", "cnn", "linear"):
        cell = dataclasses.replace(TINY, width=8, auxiliary=kind)
        trainer = forward_gradients._Trainer(cell, Record(tmp_path / kind, cell), Context())
        try:
            block = trainer.pipeline.blocks[0]
            assert block.auxiliary is not None
            shapes[kind] = [tuple(p.shape) for p in block.auxiliary.parameters() if p.dim() > 1]
            assert isinstance(trainer, training.Trainer)
            assert isinstance(block.optimizer, torch.optim.SGD)
        finally:
            trainer.close()
    assert shapes["mlp"] == [(128, 32), (128, 128), (128, 128), (10, 128)]
    assert shapes["cnn"] == [(4, 8, 1, 1), *[(4, 4, 3, 3)] * 3, (10, 16)]
    assert shapes["linear"] == [(10, 32)]
