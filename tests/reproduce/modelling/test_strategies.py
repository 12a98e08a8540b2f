"""Test the costs of training strategies on several devices, on equal stages with known results."""

from dataclasses import replace

import pytest

from petra_core import methods
from petra_core.prediction.simulation import Cost
from reproduce.grids.plans.tradeoff import cells
from reproduce.modelling.network import TimedNetwork, convert_costs
from reproduce.modelling.strategies import STRATEGIES, Outcome, Strategy, evaluate_best, find_front

STAGES = 10  # stages of RevNet-18
#: Forward 1, backward with recomputation 3, no update. Without recomputation, one device takes 3.
EQUAL = (Cost(1.0, 3.0, 0.0, 1, 1, 1),) * (STAGES - 1) + (Cost(1.0, 2.0, 0.0, 1, 1, 1),)
BY_TITLE = {way.title: way for way in STRATEGIES}


def outcome(way: Strategy, devices: int, k: int, costs: tuple[Cost, ...]) -> Outcome:
    cell = replace(cells("smoke")[0], seed=0)
    network = TimedNetwork(cell, methods.PETRA, k, costs, (True,) * STAGES)  # type: ignore[arg-type]  # a StageCostCell
    return evaluate_best(network, way, devices, k)


def seconds(way: Strategy, devices: int, k: int = 4, costs: tuple[Cost, ...] = EQUAL) -> float:
    return outcome(way, devices, k, costs).seconds


def test_one_device_does_the_work_of_all_stages() -> None:
    assert seconds(BY_TITLE["Backpropagation"], 1) == pytest.approx(3 * STAGES)
    assert seconds(BY_TITLE["Reversible backpropagation"], 1) == pytest.approx(4 * STAGES - 1)
    assert seconds(BY_TITLE["PETRA"], 1) == pytest.approx(4 * STAGES - 1)


def test_one_device_a_stage_is_as_fast_as_its_slowest_stage_where_nothing_waits() -> None:
    assert seconds(BY_TITLE["PETRA"], STAGES) == pytest.approx(4.0)
    assert seconds(BY_TITLE["Delayed gradients"], STAGES) == pytest.approx(3.0)
    assert seconds(BY_TITLE["Approximate inputs"], STAGES) == pytest.approx(5.0)
    # With one micro-batch at a time, devices do not help.
    assert seconds(BY_TITLE["Backpropagation"], STAGES) == pytest.approx(3 * STAGES)


@pytest.mark.parametrize("k", [4, 16])
def test_updates_count_as_often_as_they_come(k: int) -> None:
    """If all wait for one device, it repeats k turns and an update."""
    costs = (Cost(1.0, 3.0, 5.0, 1, 1, 1), *EQUAL[1:])
    assert seconds(BY_TITLE["PETRA"], STAGES, k, costs) == pytest.approx(4.0 + 5.0 / k, rel=1e-9)


@pytest.mark.parametrize("title", ["GPipe", "1F1B"])
def test_a_synchronous_pipeline_fills_and_drains_at_every_update(title: str) -> None:
    """The time is (k + P - 1) / k times that of a full pipeline."""
    assert seconds(BY_TITLE[title], STAGES, k=20) == pytest.approx(3.0 * (20 + STAGES - 1) / 20, rel=0.02)


def test_checkpointing_holds_less_and_takes_longer() -> None:
    plain, lean = (outcome(BY_TITLE[title], 2, 4, EQUAL) for title in ("GPipe", "GPipe, checkpointing"))
    assert lean.peak < plain.peak
    assert lean.seconds > plain.seconds


def test_only_what_reconstructs_sends_inputs_down() -> None:
    costs = (Cost(1.0, 3.0, 0.0, 8, 0, 1), Cost(1.0, 3.0, 0.0, 8, 16, 1), Cost(1.0, 2.0, 0.0, 0, 16, 1))
    assert [cost.down for cost in convert_costs(methods.DSP, costs, [True] * 3)] == [0, 8, 8]
    assert [cost.down for cost in convert_costs(methods.PETRA, costs, [True] * 3)] == [0, 16, 16]


def test_the_front_is_what_nothing_beats_in_everything() -> None:
    points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (1.0, 5.0), (3.0, 4.0)]
    assert find_front(points, lambda better, other: points[better] != points[other]) == [True, True, False, True, False]
    # Being better only in the first coordinate may be chance.
    assert find_front(points, lambda better, other: False) == [True, True, False, True, True]
