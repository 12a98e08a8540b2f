"""Test that arrays and events give the same speed."""

import random

import pytest

from petra_core import methods
from petra_core.prediction.simulation import Cost, Link, make_schedule, simulate
from petra_core.staleness import per_device
from reproduce.modelling.pace import pace

SLOW = Link(latency=0.5, bandwidth=8)


@pytest.mark.parametrize("fall", [2, 1], ids=["lockstep", "1f1b"])
@pytest.mark.parametrize(("stages", "k", "link"), [(1, 1, SLOW), (2, 3, Link()), (3, 1, SLOW), (6, 3, SLOW)])
def test_pace_equals_that_of_simulated_events(stages: int, k: int, link: Link, fall: int) -> None:
    """The pace from arrays equals the pace of simulated events."""
    generator = random.Random(stages + k)
    costs = [
        Cost(generator.random(), 2 * generator.random(), generator.random(), generator.randint(0, 30), 9)
        for _ in range(stages)
    ]
    measured = -(-32 // k) * k
    staleness = per_device([1] * stages, slack=fall - 1)
    schedule = make_schedule(methods.PETRA, [1] * stages, 2 * measured + 4 * stages, k, staleness)
    timeline = simulate(schedule, costs, link)
    at_stage_0 = [event.end for event in timeline.events if event.name[:2] == ("B", 0)][: 2 * measured + 2 * stages]
    assert pace(costs, link, accumulation=k, fall=fall) == pytest.approx(
        (at_stage_0[-1] - at_stage_0[-1 - measured]) / measured
    )


def test_pace_of_a_thousand_stages() -> None:
    """Two micro-batches per stage are in flight, so a round trip of 3 + 2 * 7 takes half as long for each."""
    assert pace([Cost(1, 2)] * 1000) == pytest.approx(3)
    assert pace([Cost(1, 2, up=2, down=2)] * 200, Link(latency=5, bandwidth=1)) == pytest.approx(8.5, abs=0.1)
    assert pace([Cost(1, 2, up=4)] * 200, Link(bandwidth=1)) == pytest.approx(4, abs=0.01), "the link is the slowest"
    assert pace([Cost(1, 2)] * 1000, fall=1) == pytest.approx(3)
    with pytest.raises(ValueError, match=r"falls by 2 .* or 1 .*, got 3"):
        pace([Cost(1, 2)], fall=3)
    with pytest.raises(ValueError, match="accumulation must be at least 1, got 0"):
        pace([Cost(1, 1)], accumulation=0)
