"""The learning rate of an update's samples: in proportion for SGD, by the square root for AdamW."""

import pytest

from petra_core import methods
from reproduce.cells import rates
from reproduce.grids import small
from reproduce.grids.plans.transformers import IMAGES


@pytest.mark.parametrize(("optimizer", "expected"), [("sgd", 0.4), ("adamw", 5e-4)])
def test_four_times_the_samples(optimizer: str, expected: float) -> None:
    assert rates.rate(optimizer, 64, 4) == rates.REFERENCES[optimizer]
    assert rates.rate(optimizer, 64, 16) == pytest.approx(expected)
    with pytest.raises(ValueError, match="batch_size"):
        rates.rate(optimizer, 0, 1)


@pytest.mark.parametrize("k", [1, 4, 16])
def test_cells_that_differ_in_k_have_one_reference(k: int) -> None:
    assert rates.reference_of(small.cell(accumulation=k)) == 0.1
    assert rates.reference_of(small.cell(accumulation=k, replicas=2, learning_rate=0.1 * 32 * k * 2 / 256)) == 0.1
    assert rates.reference_of(IMAGES.cell(methods.PETRA, k)) == 0.00141421356


def test_in_words() -> None:
    assert rates.described("sgd", 0.1) == "0.1·batch·k/256"
    assert rates.described("adamw", 2.5e-4) == "0.00025·√(batch·k/256)"
