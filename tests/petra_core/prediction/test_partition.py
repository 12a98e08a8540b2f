"""The best cut, against all cuts."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_core.prediction.pace import pace
from petra_core.prediction.partition import assess, plan, replicated_plan
from petra_core.prediction.simulation import Cost, Link


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
    best_cut = plan(seconds, devices, held=held)
    assert (best_cut.slowest, max(best_cut.bytes)) == min(worst)
    assert sum(best_cut.partition) == len(seconds)
    limit = sorted(size for _, size in worst)[len(worst) // 2]
    limited = plan(seconds, devices, held=held, limit=limit)
    assert max(limited.bytes) <= limit
    assert (limited.slowest, max(limited.bytes)) == min(pair for pair in worst if pair[1] <= limit)


@given(
    st.lists(st.tuples(*[st.integers(0, 20)] * 4), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.integers(0, 60),
)
def test_no_cut_with_replicas_is_better(stages: list[tuple[int, ...]], devices: int, k: int, limit: int) -> None:
    costs = [Cost(forward, backward, update, weights=weights) for forward, backward, update, weights in stages]
    held = [1 + cost.weights for cost in costs]
    link = Link(latency=0.25, bandwidth=4)

    def pace(first: int, end: int, count: int) -> float:
        part = costs[first:end]
        exchanged = sum(2 * (count - 1) * (0.25 + cost.weights / count / 4) for cost in part)
        return sum(c.forward + c.backward for c in part) / count + (sum(c.update for c in part) + exchanged) / k

    paces = [
        max(pace(a, b, count) for (a, b), count in zip(cut, counts, strict=True))
        for parts in range(1, len(costs) + 1)
        for cut in all_cuts(len(costs), parts)
        for counts in product(range(1, devices + 1), repeat=parts)
        if sum(counts) <= devices
        and all(k % count == 0 for count in counts)
        and all(sum(held[a:b]) <= limit for a, b in cut)
    ]
    if not paces:
        with pytest.raises(ValueError, match=f"stays below {limit} bytes a device"):
            replicated_plan(costs, devices, accumulation=k, exchange=link, held=held, limit=limit)
        return
    best_cut = replicated_plan(costs, devices, accumulation=k, exchange=link, held=held, limit=limit)
    assert best_cut.slowest == pytest.approx(min(paces))
    assert sum(best_cut.partition) == len(costs)
    assert best_cut.devices <= devices
    assert max(best_cut.bytes) <= limit


def test_replicas_help_where_no_cut_does() -> None:
    costs = [Cost(1, 1), Cost(2, 4), Cost(1, 1)]
    assert plan([2, 6, 2], 3).speedup == pytest.approx(10 / 6)
    best_cut = replicated_plan(costs, 5, accumulation=3)
    assert (best_cut.partition, best_cut.replicas, best_cut.slowest) == ((1, 1, 1), (1, 3, 1), 2)
    assert best_cut.efficiency == 1
    assert str(best_cut).splitlines()[2].split() == ["1..3", "1", "2000.000", "100%", "0.0"]
    assert replicated_plan(costs, 5, accumulation=1).slowest == 6, "no number of replicas but 1 divides k = 1"
    assert replicated_plan(costs, 5, accumulation=3, most=2).slowest == 6, "nor does 2 divide 3"
    everything = replicated_plan(costs, 4, accumulation=4)
    assert (everything.partition, everything.replicas) == ((3,), (4,)), "data parallelism"
    heavy = [Cost(cost.forward, cost.backward, weights=100) for cost in costs]
    assert replicated_plan(heavy, 4, accumulation=4, exchange=Link(bandwidth=10)).replicas != (4,)


def test_what_a_plan_says_and_refuses() -> None:
    best_cut = plan([1e-3, 4e-3, 1e-3, 2e-3], 2, held=[1_000_000, 0, 2_000_000, 0])
    assert (best_cut.partition, best_cut.bytes) == ((2, 2), (1_000_000, 2_000_000))
    assert (best_cut.speedup, best_cut.efficiency) == pytest.approx((1.6, 0.8))
    assert str(best_cut).splitlines()[1].split() == ["0", "0..1", "5.000", "100%", "1.0"]
    assert assess([1, 4, 1, 2], (3, 1)).speedup == pytest.approx(8 / 6)
    for make, message in (
        (lambda: assess([1, 1], (1, 2)), r"a partition of 2 stages has that sum, got \(1, 2\)"),
        (lambda: plan([1, 1], 3), "each of 3 devices needs a stage, and there are 2"),
        (lambda: plan([1, 1], 1, held=[1]), "of the same stages, got 2 and 1"),
        (
            lambda: plan([1, 1], 2, held=[7, 1], limit=5),
            "stays below 5 bytes a device: the largest stage holds 7, all of them 8",
        ),
        (lambda: replicated_plan([Cost(1, 1)], 0), "at least one device, got 0"),
        (lambda: replicated_plan([Cost(1, 1)], 1, accumulation=-1), "accumulation must be at least 1, got -1"),
        (lambda: pace([Cost(1, 1)], accumulation=0), "accumulation must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
