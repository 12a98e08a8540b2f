"""PETRA on a transformer beside backpropagation: the cells, and what is said of their runs."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce import networks
from reproduce.cells import TrainingCell
from reproduce.tables import results, transformers
from reproduce.tables.content import Table
from reproduce.tables.experiments import experiments
from tests import fake_records


def test_the_cells_differ_in_method_k_seed_and_the_rate_of_their_samples() -> None:
    cells = transformers.cells("small")
    assert len(set(cells)) == len(cells) == 2 * 3 * 3
    assert transformers.cells("smoke") == transformers.cells("paper") == []
    rates = {cell.accumulation: cell.learning_rate for cell in cells if isinstance(cell, TrainingCell)}
    assert rates == pytest.approx({1: 5e-4, 4: 1e-3, 16: 2e-3})
    assert cells[0].name == "cifar10-revvit_tiny-w48-backpropagation-k1-adamw-s0-63156d89c1f6"
    stages = networks.build(cells[0], 10)
    assert len(stages) == 14
    assert all(stage.invertible for stage in stages[1:-1])


def test_runs_are_compared_by_k_and_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for method, reached in ((methods.BACKPROPAGATION, 60.0), (methods.PETRA, 58.0 + 0.01 * seed)):
            fake_records.train(transformers._cell(method, 4, seed), tmp_path, reached + seed)
    known = results.read(tmp_path)
    (experiment,) = experiments(known.training)
    assert experiment.described.endswith("batch·k/256, adamw, float32")
    found = transformers.section(known)
    (table,) = (block for block in found.blocks if isinstance(block, Table))
    assert [row[0].text for row in table.rows] == ["Backpropagation", "PETRA"]
    row = {f"{c.group} {c.name}": e for c, e in zip(table.columns, table.rows[1], strict=True)}
    assert row["k = 4 difference"].raw == pytest.approx(-1.99)
    assert row["k = 4 verdict"].text == "differ"
    assert row["k = 1 last epoch, %"].text == "not run"
    assert "RevViT-Tiny, width 48, 4-pixel patches" in table.caption
    assert "1 comparison: differ 1" in found.findings[0].text


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    found = transformers.section(results.read(tmp_path))
    assert "No transformer has been trained yet." in found.blocks
    assert found.coverage == "not run"
