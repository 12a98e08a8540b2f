"""Test reconstruction by coupling and depth: finished and diverged runs, and a table for each arithmetic."""

from pathlib import Path

from reproduce.cells.transformers import MODELS
from reproduce.exhibits import couplings
from reproduce.grids.plans.couplings import ADDITIVE, BLOCKS, COUPLINGS, plan_cell
from tests import fake_records
from tests.sections import made, tables


def test_coupling_models_have_the_planned_depth() -> None:
    """The model of every coupling and number of blocks has that depth."""
    assert all(MODELS[coupling.model(blocks)].depth == blocks for coupling in COUPLINGS for blocks in BLOCKS)


def test_coupling_errors_include_diverged_not_unfinished_runs(tmp_path: Path) -> None:
    """Errors are those of finished and diverged runs; unfinished runs are left out."""

    def line(epoch: int, error: float) -> dict[str, object]:
        measured = {
            f"{cause}/input": [None, *[value] * 12, None] for cause, value in (("rounding", 1e-2), ("training", error))
        }
        return {"epoch": epoch, "test_accuracy": 50.0, "probes": 2, "measured": measured}

    for seed in (0, 1, 2):
        record = fake_records.begin(plan_cell(ADDITIVE, 12, "bf16", seed), tmp_path)
        for epoch in (1, 2, 3) if seed < 2 else (1,):
            record.append(line(epoch, 0.5 if seed < 2 else 2.0))
        if seed < 2:
            record.finish({"test_accuracy": 50.0, "best_test_accuracy": 50.0, "train_loss": 1.0, "peak_bytes": 1})
        else:
            record.fail("diverged", "the loss is nan")
    fake_records.begin(plan_cell(ADDITIVE, 24, "bf16"), tmp_path).append(line(1, 9.0))
    section = made(couplings.EXHIBIT, tmp_path)
    (table,) = tables(section)
    assert table.key == "couplings-small-bf16"
    texts = [entry.text for entry in table.rows[1]]
    assert texts[:2] == ["additive (RevViT)", "12"]
    assert texts[2].startswith("1.0")
    assert texts[2].endswith("(3)")  # the third run has errors from before it diverged
    assert texts[4] == "0.010, 0.010 to 0.010 (3)"
    assert texts[5].startswith("50.00")
    assert {entry.text for entry in table.rows[2][2:5]} == {"not run"}
    assert section.count.startswith("2 of ")
    assert texts[-1] == "1 loss not finite"
    assert section.sentence.endswith("; 1 of 3 runs is broken.")
    assert "1 of 3 runs is broken: its errors are of" in section.findings[0].text
