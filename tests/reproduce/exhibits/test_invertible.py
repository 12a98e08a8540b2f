"""Test the invertible RevNet compared with the paper's: which memory vanishes, which grows, and both accuracies."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.cells.networks import HELD
from reproduce.exhibits import invertible
from reproduce.grids import recipes
from reproduce.grids.plans.invertible import OURS, PAPERS
from tests import fake_records
from tests.sections import made, situation, table

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize("depth", invertible.DEPTHS)
def test_inner_stage_buffers_vanish(depth: int) -> None:
    """With invertible stages, only the stem buffers inputs, and the head has those of the current micro-batch."""
    theirs, ours = (invertible.predict_bytes(family, depth)["inputs"] for family in (PAPERS, OURS))
    # In float32: images for each micro-batch of staleness and the current one; two streams.
    stem = 4 * 64 * 3 * 224 * 224 * (2 * ({18: 10, 50: 18}[depth] - 1) + 1)
    assert ours == stem + 4 * 64 * 2 * 64 * 56 * 56
    assert theirs > 3 * stem


def test_invertible_table_adds_up(tmp_path: Path) -> None:
    """Every column of the memory table adds up to its sum."""
    adding_up = table(made(invertible.EXHIBIT, tmp_path), "invertible")
    for _, rows in adding_up.bodies():
        assert [row[0].text for row in rows] == [*(kind.replace("_", " ") for kind in HELD), "sum"]
        for column in range(1, len(adding_up.columns) - 1):
            values = [float(row[column].raw) for row in rows]
            assert values[-1] == pytest.approx(sum(values[:-1]))


@situation(invertible.EXHIBIT, "invertible-small")
def both_networks_at_one_k(root: Path) -> None:
    """Runs are compared by method, k and seed, and the memory is the measured peak."""
    for seed in range(3):
        for network, reached in (("revnet18", 60.0), ("invertible_revnet18", 58.0 + 0.01 * seed)):
            fake_records.train(recipes.cell("small", network, methods.PETRA, 4, seed), root, reached + 0.1 * seed)
