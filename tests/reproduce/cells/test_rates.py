"""Test the learning rate: proportional to the samples per update for SGD, to their root for AdamW; its schedule."""

import pytest

from petra_core import methods
from reproduce.cells import rates
from reproduce.cells.rates import LearningRateSchedule, learning_rate
from reproduce.grids import recipes
from reproduce.grids.plans.transformers import IMAGES


def test_rate_scales_with_samples_per_update() -> None:
    """Four times the samples per update give four times the rate for SGD and twice the rate for AdamW."""
    for optimizer, expected, words in (("sgd", 0.4, "0.1·batch·k/256"), ("adamw", 5e-4, "0.00025·√(batch·k/256)")):
        reference = rates.REFERENCES[optimizer]
        assert learning_rate(64, 4, optimizer=optimizer) == reference
        assert learning_rate(64, 16, optimizer=optimizer) == pytest.approx(expected)
        assert rates.describe_rule(optimizer, reference) == words


def test_reference_rate_does_not_depend_on_k() -> None:
    """Cells that differ only in k or in the number of replicas have the same reference rate."""
    for k in (1, 4, 16):
        assert rates.reference_of(recipes.cell("small", accumulation=k)) == 0.1
        assert (
            rates.reference_of(recipes.cell("small", accumulation=k, replicas=2, learning_rate=0.1 * 32 * k * 2 / 256))
            == 0.1
        )
        assert rates.reference_of(IMAGES.cell(methods.PETRA, k)) == 0.00141421356


def test_schedule_of_paper_on_cifar10() -> None:
    """Batch 64, k = 4: 781 micro-batches an epoch, 5 epochs of warm-up, drops at epochs 150 and 225."""
    for batch_size, accumulation, expected in [(64, 1, 0.025), (64, 32, 0.8), (1, 3, 0.3 / 256)]:
        assert learning_rate(batch_size, accumulation) == pytest.approx(expected, rel=1e-15)
    schedule = LearningRateSchedule(learning_rate(64, 4), warmup := 5 * 781, drops=(150 * 781, 225 * 781))
    assert schedule(0) == 0
    steps = [schedule(i + 1) - schedule(i) for i in range(warmup)]
    assert steps == pytest.approx([0.1 / warmup] * warmup, rel=1e-9)  # linear per iteration, not per epoch
    for first, last, rate in ((5, 150, 0.1), (150, 225, 0.01), (225, 300, 0.001)):  # epochs
        assert [schedule(first * 781), schedule(last * 781 - 1)] == pytest.approx([rate] * 2, rel=1e-12)


def test_schedule_accepts_constant_rate_and_factor() -> None:
    """A schedule may have no drops, and another factor."""
    assert [LearningRateSchedule(0.3)(i) for i in (0, 1, 10**6)] == [0.3] * 3
    schedule = LearningRateSchedule(1.0, 2, (2, 5), factor=0.5)
    assert [schedule(i) for i in range(7)] == [0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
