"""The best cut, against all cuts."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_core.partition import plan


def all_cuts(count: int, devices: int) -> list[list[tuple[int, int]]]:
    return [
        list(zip((0, *inner), (*inner, count), strict=True)) for inner in combinations(range(1, count), devices - 1)
    ]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 2**31))
def test_no_cut_is_better(seconds: list[int], devices: int, seed: int) -> None:
    devices = min(devices, len(seconds))
    held = [(seed >> index) % 7 for index in range(len(seconds))]
    worst = [
        (max(sum(seconds[a:b]) for a, b in cut), max(sum(held[a:b]) for a, b in cut))
        for cut in all_cuts(len(seconds), devices)
    ]
    found = plan(seconds, devices, held=held)
    assert found.slowest == min(worst)[0]
    assert sum(found.partition) == len(seconds)
    limit = sorted(size for _, size in worst)[len(worst) // 2]
    limited = plan(seconds, devices, held=held, limit=limit)
    assert max(limited.bytes) <= limit
    assert limited.slowest == min(time for time, size in worst if size <= limit)


def test_what_a_plan_says() -> None:
    found = plan([1e-3, 4e-3, 1e-3, 2e-3], 2, held=[1_000_000, 0, 2_000_000, 0])
    assert found.partition == (2, 2)
    assert found.speedup == pytest.approx(1.6)
    assert found.efficiency == pytest.approx(0.8)
    assert str(found).splitlines() == [
        "device  stages      time, ms   share   memory, MB",
        "     0  0..1           5.000   100%          1.0",
        "     1  2..3           3.000    60%          2.0",
        "expected: 1.60 times one device, efficiency 80%",
    ]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="each of 3 devices needs a stage, and there are 2"):
        plan([1, 1], 3)
    with pytest.raises(ValueError, match="of the same stages, got 2 and 1"):
        plan([1, 1], 1, held=[1])
    with pytest.raises(ValueError, match="stays below 5 bytes a device: the largest stage holds 7, all of them 8"):
        plan([1, 1], 2, held=[7, 1], limit=5)
