"""Test the learning rate by samples per update: proportional for SGD, by the square root for AdamW."""

import pytest

from petra_core import methods
from reproduce.cells import rates
from reproduce.grids import recipes
from reproduce.grids.plans.transformers import IMAGES


def test_four_times_the_samples() -> None:
    for optimizer, expected, words in (("sgd", 0.4, "0.1·batch·k/256"), ("adamw", 5e-4, "0.00025·√(batch·k/256)")):
        reference = rates.REFERENCES[optimizer]
        assert rates.rate(optimizer, 64, 4) == reference
        assert rates.rate(optimizer, 64, 16) == pytest.approx(expected)
        assert rates.described(optimizer, reference) == words
        with pytest.raises(ValueError, match="batch_size"):
            rates.rate(optimizer, 0, 1)


def test_cells_that_differ_in_k_have_one_reference() -> None:
    for k in (1, 4, 16):
        assert rates.reference_of(recipes.cell("small", accumulation=k)) == 0.1
        assert (
            rates.reference_of(recipes.cell("small", accumulation=k, replicas=2, learning_rate=0.1 * 32 * k * 2 / 256))
            == 0.1
        )
        assert rates.reference_of(IMAGES.cell(methods.PETRA, k)) == 0.00141421356
