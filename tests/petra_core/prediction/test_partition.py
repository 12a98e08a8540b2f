"""Test the best partition against all partitions."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_core.prediction.partition import assess, find_partition


def all_cuts(count: int, devices: int) -> list[list[tuple[int, int]]]:
    return [
        list(zip((0, *inner), (*inner, count), strict=True)) for inner in combinations(range(1, count), devices - 1)
    ]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 2**31))
def test_plan_is_optimal(seconds: list[int], devices: int, seed: int) -> None:
    """`plan` minimises the time of the slowest device, then the largest bytes, also under a memory limit."""
    devices = min(devices, len(seconds))
    held = [(seed >> index) % 7 for index in range(len(seconds))]
    worst = [
        (max(sum(seconds[a:b]) for a, b in cut), max(sum(held[a:b]) for a, b in cut))
        for cut in all_cuts(len(seconds), devices)
    ]
    best_cut = find_partition(seconds, devices, held=held)
    assert (best_cut.slowest, max(best_cut.bytes)) == min(worst)
    assert sum(best_cut.sizes) == len(seconds)
    limit = sorted(size for _, size in worst)[len(worst) // 2]
    limited = find_partition(seconds, devices, held=held, limit=limit)
    assert max(limited.bytes) <= limit
    assert (limited.slowest, max(limited.bytes)) == min(pair for pair in worst if pair[1] <= limit)


def test_plan_reports_measures() -> None:
    best_cut = find_partition([1e-3, 4e-3, 1e-3, 2e-3], 2, held=[1_000_000, 0, 2_000_000, 0])
    assert (best_cut.sizes, best_cut.bytes) == ((2, 2), (1_000_000, 2_000_000))
    assert best_cut.speedup == pytest.approx(1.6)
    assert str(best_cut).endswith("expected: 1.60 times one device, efficiency 80%")
    assert str(best_cut).splitlines()[1].split() == ["0", "0..1", "5.000", "100%", "1.0"]
    assert assess([1, 4, 1, 2], (3, 1)).speedup == pytest.approx(8 / 6)
