"""Test the price of latency for unmerged stages, from the stage costs that this suite has recorded."""

from pathlib import Path

from petra_core import methods
from petra_core.staleness import one_f_one_b
from reproduce.cells.kinds import StageCostCell
from reproduce.modelling.network import TimedNetwork
from reproduce.modelling.simulation import Link, make_schedule, merge_costs, simulate
from reproduce.records import results

RECORDS = Path(__file__).parents[3] / "reports" / "records"
LATENCIES = (0.0, 0.05, 0.10)  # latency of a message in ticks: micro-batches of the slowest device


def test_unmerged_processes_lose_at_most_one_latency() -> None:
    """A process needs the gradient of its highest block first, and waits for it as merged stages do."""
    runs = [run for run in results.read(RECORDS).runs if isinstance(run.cell, StageCostCell) and run.done]
    (run,) = (run for run in runs if (run.cell.model, run.cell.width) == ("revnet18", 64))
    costs = TimedNetwork.from_rows(run.cell, run.result["stages"]).costs
    for cut in ((5, 5), (2, 2, 3, 3)):
        merged = merge_costs(costs, cut)
        tick = max(cost.forward + cost.backward + cost.update for cost in merged)
        schedule = make_schedule(methods.PETRA, cut, 300, 1, one_f_one_b(10))
        for latency in LATENCIES:
            pace = simulate(schedule, costs, Link(latency=latency * tick)).seconds_per_micro_batch(skip=150, drop=60)
            assert 1 - 2e-3 <= pace / tick <= 1 + latency + 2e-3, (cut, latency)
