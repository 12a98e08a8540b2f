"""Test means of what probes measured, weighted by numbers of micro-batches."""

import pytest
from pandas import DataFrame, concat

from reproduce.presentation.compare import measured_samples
from reproduce.records.frames import average_over_micro_batches


def test_mean_is_weighted_and_skips_undefined_values() -> None:
    """Means are weighted by micro-batches, keep their order, and leave out undefined values."""
    lines = DataFrame(
        {
            "seed": [1, 1, 1, 0, 0],
            "stage": [0, 0, 1, 0, 1],
            "weight": [1, 3, 2, 5, 5],
            "value": [1.0, 5.0, None, None, 7.0],
        }
    )
    means = average_over_micro_batches(lines, ["seed", "stage"])
    assert list(means["seed"]) == [1, 1, 0, 0], "in the order in which they come"
    assert list(means["value"]) == pytest.approx([4.0, float("nan"), float("nan"), 7.0], nan_ok=True)
    samples = measured_samples(means, "value", ["stage"])
    assert {place: sample.values for place, sample in samples.items()} == {0: {1: 4.0}, 1: {0: 7.0}}
    assert samples[2].estimate is None
    assert len(concat([means, means], ignore_index=True)) == 8
