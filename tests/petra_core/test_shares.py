"""Test the partition of stages among ranks."""

from petra_core.shares import stage_ranges


def test_ranges_of_ranks_are_contiguous() -> None:
    assert stage_ranges((1, 3, 2), 6) == [range(1), range(1, 4), range(4, 6)]
