"""Test the costs of training strategies on several devices, on equal stages with known results."""

from dataclasses import replace

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from reproduce.grids.plans.tradeoff import cells
from reproduce.modelling.network import TimedNetwork
from reproduce.modelling.strategies import STRATEGIES, evaluate_best, find_front

STAGES = 10  # stages of RevNet-18
#: Forward 1, backward with recomputation 3, no update. Without recomputation, one device takes 3.
EQUAL = (Cost(1.0, 3.0, 0.0, 1, 1, 1),) * (STAGES - 1) + (Cost(1.0, 2.0, 0.0, 1, 1, 1),)
BY_TITLE = {way.title: way for way in STRATEGIES}


def seconds(title: str, k: int = 4, costs: tuple[Cost, ...] = EQUAL) -> float:
    """Return the seconds of a micro-batch with one device per stage."""
    cell = replace(cells("smoke")[0], seed=0)
    network = TimedNetwork(cell, methods.PETRA, k, costs, (True,) * STAGES)  # type: ignore[arg-type]  # a StageCostCell
    return evaluate_best(network, BY_TITLE[title], STAGES, k).seconds


def test_one_device_per_stage_is_as_fast_as_slowest_stage() -> None:
    """With one device per stage, a pipeline takes as long as its slowest stage."""
    assert seconds("PETRA") == pytest.approx(4.0)
    assert seconds("Delayed gradients") == pytest.approx(3.0)
    assert seconds("Approximate inputs") == pytest.approx(5.0)
    # With one micro-batch at a time, devices do not help.
    assert seconds("Backpropagation") == pytest.approx(3 * STAGES)


@pytest.mark.parametrize("k", [4, 16])
def test_updates_are_amortised_over_k(k: int) -> None:
    """If all wait for one device, it repeats k turns and an update."""
    costs = (Cost(1.0, 3.0, 5.0, 1, 1, 1), *EQUAL[1:])
    assert seconds("PETRA", k, costs) == pytest.approx(4.0 + 5.0 / k, rel=1e-9)


@pytest.mark.parametrize("title", ["GPipe", "1F1B"])
def test_synchronous_pipeline_fills_and_drains_per_update(title: str) -> None:
    """The time is (k + P - 1) / k times that of a full pipeline."""
    assert seconds(title, k=20) == pytest.approx(3.0 * (20 + STAGES - 1) / 20, rel=0.02)


def test_front_contains_the_undominated_points() -> None:
    """The front contains the points that no other point beats significantly in all coordinates."""
    points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (1.0, 5.0), (3.0, 4.0)]
    assert find_front(points, lambda better, other: points[better] != points[other]) == [True, True, False, True, False]
    # Being better only in the first coordinate may be chance.
    assert find_front(points, lambda better, other: False) == [True, True, False, True, True]
