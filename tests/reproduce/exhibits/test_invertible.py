"""Test the invertible RevNet compared with the paper's: which memory vanishes, which grows, and both accuracies."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import invertible
from reproduce.grids import recipes
from reproduce.grids.plans.invertible import OURS, PAPERS
from tests import fake_records
from tests.sections import situation

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize("depth", invertible.DEPTHS)
def test_inner_stage_buffers_vanish(depth: int) -> None:
    """With invertible stages, only the stem buffers inputs, and the head has those of the current micro-batch."""
    theirs, ours = (invertible.predict_bytes(family, depth)["inputs"] for family in (PAPERS, OURS))
    # In float32: images for each micro-batch of staleness and the current one; two streams.
    stem = 4 * 64 * 3 * 224 * 224 * (2 * ({18: 10, 50: 18}[depth] - 1) + 1)
    assert ours == stem + 4 * 64 * 2 * 64 * 56 * 56
    assert theirs > 3 * stem


@situation(invertible.EXHIBIT, "invertible-small")
def both_networks_at_one_k(root: Path) -> None:
    """Runs are compared by method, k and seed, and the memory is the measured peak."""
    for seed in range(3):
        for network, reached in (("revnet18", 60.0), ("invertible_revnet18", 58.0 + 0.01 * seed)):
            fake_records.train(recipes.cell("small", network, methods.PETRA, 4, seed), root, reached + 0.1 * seed)
