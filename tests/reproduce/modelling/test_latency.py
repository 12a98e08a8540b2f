"""Test the price of latency at each timing, from the stage costs that this suite has recorded."""

from functools import cache
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.prediction.simulation import Cost, Link, make_schedule, merge_costs, simulate
from petra_core.staleness import lockstep, one_f_one_b
from reproduce.cells.kinds import StageCostCell
from reproduce.modelling import full_speed
from reproduce.modelling.network import TimedNetwork
from reproduce.records import results

RECORDS = Path(__file__).parents[3] / "reports" / "records"
LATENCIES = (0.0, 0.05, 0.10)  # latency of a message in ticks: micro-batches of the slowest device


@cache
def networks() -> dict[str, TimedNetwork]:
    """Return the networks of width 64 whose stages were timed, by title."""
    runs = (run for run in results.read(RECORDS).runs if isinstance(run.cell, StageCostCell) and run.done)
    found = (TimedNetwork.from_rows(run.cell, run.result["stages"]) for run in runs)  # type: ignore[arg-type]  # selected above
    return {network.title: network for network in found if network.cell.width == 64}


def periods(costs: list[Cost], staleness: tuple[int, ...]) -> list[float]:
    """Return the periods in ticks at each latency, simulated, and compared with the arithmetic on cycles."""
    tick = max(cost.forward + cost.backward + cost.update for cost in costs)
    found = []
    for latency in LATENCIES:
        link = Link(latency=latency * tick)
        schedule = make_schedule(methods.PETRA, (1,) * len(costs), 900, 1, staleness)
        simulated = simulate(schedule, costs, link).seconds_per_micro_batch(skip=600, drop=100)
        assert simulated == pytest.approx(full_speed.period(costs, staleness, link), rel=1e-3)
        found.append(simulated / tick)
    return found


@pytest.mark.parametrize(
    ("title", "cut", "at_1f1b"),
    [
        ("RevNet-18", None, (1.000, 1.000, 1.002)),
        ("RevNet-34", None, (1.000, 1.032, 1.082)),
        ("RevNet-18", (5, 5), (1.000, 1.020, 1.070)),
        ("RevNet-18", (2, 2, 3, 3), (1.000, 1.017, 1.066)),
    ],
)
def test_lockstep_hides_latency_and_1f1b_loses_little(
    title: str, cut: tuple[int, ...] | None, at_1f1b: tuple[float, ...]
) -> None:
    """Lockstep hides the tested latencies, and asynchronous 1F1B is slower by the expected factors."""
    blocks = networks()[title].costs
    costs = list(blocks) if cut is None else merge_costs(blocks, cut)
    assert periods(costs, one_f_one_b(len(costs))) == pytest.approx(at_1f1b, abs=6e-4)
    assert periods(costs, lockstep(len(costs))) == pytest.approx((1, 1, 1), abs=1e-3)


@pytest.mark.parametrize(("title", "at_stage_0"), [("RevNet-18", (9, 9, 9)), ("RevNet-34", (17, 18, 19))])
def test_smallest_staleness_at_full_speed(title: str, at_stage_0: tuple[int, ...]) -> None:
    costs = networks()[title].costs
    tick = max(cost.forward + cost.backward + cost.update for cost in costs)
    assert tuple(full_speed.smallest_staleness(costs, Link(latency=part * tick))[0] for part in LATENCIES) == at_stage_0


def test_unmerged_processes_lose_at_most_one_latency() -> None:
    """A process needs the gradient of its highest block first, and waits for it as merged stages do."""
    costs = networks()["RevNet-18"].costs
    for cut in ((5, 5), (2, 2, 3, 3)):
        merged = merge_costs(costs, cut)
        tick = max(cost.forward + cost.backward + cost.update for cost in merged)
        schedule = make_schedule(methods.PETRA, cut, 300, 1, one_f_one_b(10))
        for latency in LATENCIES:
            pace = simulate(schedule, costs, Link(latency=latency * tick)).seconds_per_micro_batch(skip=150, drop=60)
            assert 1 - 2e-3 <= pace / tick <= 1 + latency + 2e-3, (cut, latency)
