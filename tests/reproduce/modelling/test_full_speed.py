"""Test the period that is computed from cycles against the simulation of a long run."""

import random

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from petra_core.staleness import lockstep, one_f_one_b
from reproduce.modelling.full_speed import TOLERANCE, period, smallest_staleness
from reproduce.modelling.simulation import Link, make_schedule, simulate

LINKS = (Link(), Link(latency=0.4), Link(latency=0.4, bandwidth=30))


def made_up(seed: int) -> tuple[list[Cost], Link, int]:
    generator = random.Random(seed)
    costs = [
        Cost(
            generator.random(),
            2 * generator.random(),
            generator.random() / 3,
            generator.randint(0, 20),
            generator.randint(0, 20),
        )
        for _ in range(generator.randint(1, 5))
    ]
    return costs, generator.choice(LINKS), generator.randint(1, 3)


def simulated(costs: list[Cost], staleness: tuple[int, ...], link: Link, k: int = 1) -> float:
    """Return the seconds of a micro-batch in a long run, because the reserve of the filling phase is used up slowly."""
    schedule = make_schedule(methods.PETRA, (1,) * len(costs), 900, k, staleness)
    return simulate(schedule, costs, link).seconds_per_micro_batch(skip=600, drop=60)


@pytest.mark.parametrize("seed", range(12))
def test_period_matches_long_simulation(seed: int) -> None:
    """The period computed from cycles equals the time per micro-batch in a long simulation."""
    costs, link, k = made_up(seed)
    generator = random.Random(-seed)
    vector = [0]
    for _ in costs[1:]:
        vector.insert(0, vector[0] + generator.randint(0, 3))
    assert period(costs, vector, link, k) == pytest.approx(simulated(costs, tuple(vector), link, k), rel=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_smallest_staleness_is_minimal(seed: int) -> None:
    """`smallest` keeps full speed, and lowering any of its numbers does not."""
    costs, link, k = made_up(seed)
    vector, plenty = smallest_staleness(costs, link, k), tuple(20 * stage for stage in reversed(range(len(costs))))
    best = simulated(costs, plenty, link, k)
    assert simulated(costs, vector, link, k) <= best * (1 + TOLERANCE) * 1.001
    for stage, number in enumerate(vector[:-1]):  # lower one number at a time, where the vector stays monotonic
        if number > vector[stage + 1]:
            smaller = (*vector[:stage], number - 1, *vector[stage + 1 :])
            assert period(costs, smaller, link, k) > best * (1 + TOLERANCE)


def test_smallest_staleness_of_known_cases() -> None:
    """For equal stages, `smallest` returns the staleness of 1F1B, and a larger one with latency."""
    equal = [Cost(1, 2)] * 4
    assert smallest_staleness(equal) == one_f_one_b(4)
    assert smallest_staleness([Cost(0, 0)] * 3) == (0, 0, 0)
    assert smallest_staleness([Cost(1, 1)]) == (0,)
    assert smallest_staleness(equal, Link(latency=1.4)) == lockstep(4)
    assert smallest_staleness([Cost(1, 1), Cost(4, 4), Cost(1, 1)]) == (2, 1, 0)
    assert smallest_staleness([Cost(4, 4), Cost(1, 1), Cost(1, 1)]) == (1, 0, 0), (
        "the others wait for the first all the same"
    )


def test_simulation_and_arithmetic_agree_in_steady_state() -> None:
    """Without overlap, all work and the last update are in a row. In the full pipeline, the slowest stage counts."""
    costs = (Cost(1, 3, 0.5), Cost(2, 5, 0.25), Cost(0.5, 1.5, 0.25), Cost(0.25, 0.75, 0.5))
    assert period(costs, (0,) * 4) == pytest.approx(4 + 7 + 2 + 1 + 0.5)
    assert period(costs, (0,) * 4, accumulation=4) == pytest.approx(4 + 7 + 2 + 1 + 0.5 / 4)
    assert period(costs, lockstep(4)) == pytest.approx(7.25)
    messages = tuple(
        Cost(c.forward, c.backward, c.update, up, down)
        for c, up, down in zip(costs, (100, 200, 50, 0), (0, 400, 300, 100), strict=True)
    )
    link = Link(latency=0.1, bandwidth=100)
    schedule = make_schedule(methods.REVERSIBLE_BACKPROPAGATION, [1] * 4, 3)
    without_overlap = simulate(schedule, messages, link).seconds_per_micro_batch()
    assert without_overlap == pytest.approx(14.5 + (1 + 2 + 0.5) + (4 + 3 + 1) + 6 * 0.1)
    assert without_overlap == pytest.approx(period(messages, (0,) * 4, link))
    assert period(messages, lockstep(4), link) == pytest.approx(7.25), "messages travel while devices work"
    assert period(messages, lockstep(4), Link(bandwidth=20)) == pytest.approx(400 / 20), "the link is the slowest"
