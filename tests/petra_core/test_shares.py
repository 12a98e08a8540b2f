"""Test the partition of stages among ranks."""

from petra_core.shares import even_partition, stage_ranges


def test_partition_is_even_and_ranges_are_contiguous() -> None:
    """even_partition divides stages evenly, owned returns contiguous ranges, and invalid partitions raise."""
    assert even_partition(10, 2) == (5, 5)
    assert even_partition(10, 4) == (3, 3, 2, 2)
    assert stage_ranges((1, 3, 2), 6) == [range(1), range(1, 4), range(4, 6)]
