"""Stages shared among ranks."""

import pytest

from petra_core.shares import even_partition, owned


@pytest.mark.parametrize(
    ("stages", "ranks", "expected"), [(10, 2, (5, 5)), (10, 4, (3, 3, 2, 2)), (3, 3, (1, 1, 1)), (1, 1, (1,))]
)
def test_even_partition(stages: int, ranks: int, expected: tuple[int, ...]) -> None:
    assert even_partition(stages, ranks) == expected
    assert sum(map(len, owned(expected, ranks, stages))) == stages


@pytest.mark.parametrize("ranks", [0, 4])
def test_more_ranks_than_stages_are_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match=f"{ranks} ranks need at least as many stages, got 3"):
        even_partition(3, ranks)


def test_runs_follow_each_other() -> None:
    assert owned((1, 3, 2), 3) == [range(1), range(1, 4), range(4, 6)]


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ((2, 2, 1), r"each of the 2 ranks at least one stage, got \(2, 2, 1\)"),
        ((5, 0), r"each of the 2 ranks at least one stage, got \(5, 0\)"),
        ((2, 2), r"a partition of 5 stages has that sum, got \(2, 2\) with the sum 4"),
    ],
)
def test_what_does_not_fit_is_refused(partition: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        owned(partition, 2, 5)
