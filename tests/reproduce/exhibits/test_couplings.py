"""Test reconstruction by coupling and depth: finished and diverged runs, and a table for each arithmetic."""

from pathlib import Path

from reproduce.cells.transformers import MODELS
from reproduce.exhibits import couplings
from reproduce.grids.plans.couplings import ADDITIVE, BLOCKS, COUPLINGS, plan_cell
from tests import fake_records
from tests.sections import situation


def test_coupling_models_have_the_planned_depth() -> None:
    """The model of every coupling and number of blocks has that depth."""
    assert all(MODELS[coupling.model(blocks)].depth == blocks for coupling in COUPLINGS for blocks in BLOCKS)


@situation(couplings.EXHIBIT)
def finished_diverged_and_unfinished_runs(root: Path) -> None:
    """Errors are those of finished and diverged runs, from before it diverged; unfinished runs are left out."""
    for seed, error in ((0, 0.5), (1, 0.5), (2, 2.0)):
        record = fake_records.begin(plan_cell(ADDITIVE, 12, "bf16", seed), root)
        for epoch in (1, 2, 3) if seed < 2 else (1,):
            record.append(line(epoch, error))
        if seed < 2:
            record.finish({"test_accuracy": 50.0, "best_test_accuracy": 50.0, "train_loss": 1.0, "peak_bytes": 1})
        else:
            record.fail("diverged", "the loss is nan")
    fake_records.begin(plan_cell(ADDITIVE, 24, "bf16"), root).append(line(1, 9.0))


def line(epoch: int, error: float) -> dict[str, object]:
    """Return the metrics of an epoch with the errors of the inputs of 12 stages."""
    measured = {
        f"{cause}/input": [None, *[value] * 12, None] for cause, value in (("rounding", 1e-2), ("training", error))
    }
    return {"epoch": epoch, "test_accuracy": 50.0, "probes": 2, "measured": measured}
