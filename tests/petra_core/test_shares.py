"""Test the partition of stages among ranks."""

import pytest

from petra_core.shares import even_partition, stage_ranges


def test_partition_is_even_and_ranges_are_contiguous() -> None:
    """even_partition divides stages evenly, owned returns contiguous ranges, and invalid partitions raise."""
    assert even_partition(10, 2) == (5, 5)
    assert even_partition(10, 4) == (3, 3, 2, 2)
    assert stage_ranges((1, 3, 2), 6) == [range(1), range(1, 4), range(4, 6)]
    with pytest.raises(ValueError, match="4 ranks need at least 4 stages, got 3"):
        even_partition(3, 4)
    with pytest.raises(ValueError, match=r"each of the 2 ranks at least one stage, got \(5, 0\)"):
        stage_ranges((5, 0), 5)
    with pytest.raises(ValueError, match=r"a partition of 5 stages must have the sum 5, got \(2, 2\) with the sum 4"):
        stage_ranges((2, 2), 5)
