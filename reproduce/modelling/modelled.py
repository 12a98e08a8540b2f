"""Model the speed of a network on several devices from the cost of each stage on one device.

The exhibits that predict speeds (Table 5, the study of scale) share this module. It has the measured stage costs as the
timeline model uses them, and the two speeds that the paper compares, both simulated event by event:

    seconds_without_overlap    reversible backpropagation: the next micro-batch enters when this one is done
    seconds_when_full          PETRA in a full pipeline, in lockstep unless stated

All devices are assumed to equal the measured one. Times are in seconds per micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import cast

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction.footprint import Footprint
from petra_core.prediction.orders import of_method
from petra_core.prediction.simulation import INSTANT, Cost, Link, simulate
from reproduce.cells.kinds import StageCostCell
from reproduce.modelling.balance import Balance
from reproduce.records.frames import RunSet
from reproduce.records.results import Run

__all__ = ["Modelled", "keeping_graphs", "seconds_when_full", "seconds_without_overlap", "timed_networks"]


@dataclass(frozen=True)
class Modelled:
    """One network whose stages were timed."""

    run: Run[StageCostCell]

    @property
    def title(self) -> str:
        """Name of the network in tables, such as RevNet-18."""
        return self.run.cell.model.replace("revnet", "RevNet-")

    @cached_property
    def balance(self) -> Balance:
        """The network's stages with their costs."""
        return Balance.of_rows(self.run.cell, self.run.result["stages"])

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Cost of each stage."""
        return self.balance.costs

    @property
    def invertible(self) -> tuple[bool, ...]:
        """Flags of the stages that can be inverted."""
        return tuple(row["invertible"] for row in self.run.result["stages"])

    def footprints(self, method: Method) -> tuple[Footprint, ...]:
        """Return the bytes that each stage needs per micro-batch under a method."""
        return Balance(replace(self.run.cell, method=method.name), self.costs).footprints

    @property
    def pace(self) -> float:
        """Seconds of PETRA per micro-batch, with one stage per device, over links that take no time."""
        return seconds_when_full(self.costs, INSTANT, self.run.cell.accumulation)

    @property
    def without_overlap(self) -> float:
        """Seconds of reversible backpropagation per micro-batch without overlap, under the same conditions."""
        return seconds_without_overlap(self.costs, self.run.cell.accumulation)

    @property
    def speedup(self) -> float:
        """Time of reversible backpropagation without overlap over that of PETRA, under the same conditions."""
        return self.without_overlap / self.pace

    @property
    def idle(self) -> float:
        """Share of the time in which a device of PETRA waits, with one stage per device, averaged over the devices."""
        return 1 - sum(self.balance.seconds) / (len(self.costs) * self.pace)

    @property
    def devices_enough(self) -> int:
        """Smallest number of devices whose best partition is as fast as one stage per device."""
        pace = max(self.balance.seconds) * (1 + 1e-9)  # sums are rounded
        return next(count for count in range(1, len(self.costs) + 1) if self.balance.best(count).slowest <= pace)

    @property
    def slowest(self) -> int:
        """Stage that determines PETRA's speed over links that take no time."""
        seconds = self.balance.seconds
        return max(range(len(seconds)), key=seconds.__getitem__)

    @property
    def share_of_slowest(self) -> float:
        """Share of the slowest stage in the work of all stages."""
        return max(self.balance.seconds) / sum(self.balance.seconds)

    @property
    def machine(self) -> str:
        """Machine on which the stages were timed, and its load at that time."""
        environment, result = self.run.environments[-1], self.run.result
        name = environment["device"] if environment["device"] != "cpu" else environment["processor"]
        load = " and ".join(f"{load:.1f}" for load in result["load"])
        threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        return f"{name}, {threads}; load before and after {load} on {result['cores']} cores"


def timed_networks(run_set: RunSet) -> list[Modelled]:
    """Return every network of a run set whose stages were timed."""
    timed = run_set.done.loc[run_set.done["kind"] == "stage_costs", "cell"]
    return [Modelled(cast("Run[StageCostCell]", run_set.frames.by_name[name])) for name in timed]


@cache
def seconds_without_overlap(costs: tuple[Cost, ...], accumulation: int = 1) -> float:
    """Return the seconds per micro-batch of reversible backpropagation without overlap, with one stage per device."""
    micro_batches = 2 * accumulation + 1  # the first has no update before it
    order = of_method(methods.REVERSIBLE_BACKPROPAGATION, costs, [1] * len(costs), micro_batches, accumulation)
    return simulate(order, INSTANT).seconds_per_micro_batch()


@cache
def seconds_when_full(costs: tuple[Cost, ...], link: Link = INSTANT, accumulation: int = 1, fall: int = 2) -> float:
    """Return the seconds per micro-batch in a full pipeline, one stage per device (`reproduce.modelling.pace`)."""
    from reproduce.modelling.pace import pace  # numpy is slow to import, and the plan of a grid does not need it

    return pace(costs, link, accumulation=accumulation, fall=fall)


def keeping_graphs(costs: Sequence[Cost]) -> list[Cost]:
    """Return the costs of stages that keep their graphs, from the costs of the same stages when they reconstruct.

    Reconstructing is an evaluation, so a backward is shorter by a forward, except for the head, which keeps its graph
    under every method. Only a gradient goes down, of the size of the message that came up.
    """
    last = len(costs) - 1
    return [
        replace(
            cost,
            backward=cost.backward if stage == last else max(0.0, cost.backward - cost.forward),
            down=costs[stage - 1].up if stage else 0,
        )
        for stage, cost in enumerate(costs)
    ]
