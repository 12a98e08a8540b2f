"""The speed of a network on several devices, modelled from the cost of each of its stages on one.

The exhibits that predict speeds (Table 5, the study of scale) share this: measured stage costs as the timeline model
takes them, and the two paces that the paper compares, both simulated event by event:

    seconds_without_overlap    reversible backpropagation: the next micro-batch enters when this one is done
    seconds_when_full          PETRA in a full pipeline, in lockstep unless stated

Devices are taken to be equal to the one that was measured. Times are in seconds for a micro-batch.
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
from reproduce.records.frames import Sheet
from reproduce.records.results import Run

__all__ = ["Modelled", "keeping_graphs", "seconds_when_full", "seconds_without_overlap", "timed_networks"]


@dataclass(frozen=True)
class Modelled:
    """One network whose stages were timed."""

    run: Run[StageCostCell]

    @property
    def title(self) -> str:
        """The network's name in tables, such as RevNet-18."""
        return self.run.cell.model.replace("revnet", "RevNet-")

    @cached_property
    def balance(self) -> Balance:
        """The network's stages with their costs."""
        return Balance.of_rows(self.run.cell, self.run.result["stages"])

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The cost of each stage."""
        return self.balance.costs

    @property
    def invertible(self) -> tuple[bool, ...]:
        """Whether each stage can be inverted."""
        return tuple(row["invertible"] for row in self.run.result["stages"])

    def footprints(self, method: Method) -> tuple[Footprint, ...]:
        """Bytes that each stage takes for a micro-batch under a method."""
        return Balance(replace(self.run.cell, method=method.name), self.costs).footprints

    @property
    def pace(self) -> float:
        """Seconds of PETRA for a micro-batch, one device a stage, messages taking no time."""
        return seconds_when_full(self.costs, INSTANT, self.run.cell.accumulation)

    @property
    def without_overlap(self) -> float:
        """Seconds of reversible backpropagation for a micro-batch without overlap, likewise."""
        return seconds_without_overlap(self.costs, self.run.cell.accumulation)

    @property
    def speedup(self) -> float:
        """Time of reversible backpropagation without overlap over that of PETRA, likewise."""
        return self.without_overlap / self.pace

    @property
    def idle(self) -> float:
        """Share of the time in which a device of PETRA's waits, one device a stage, mean over the devices."""
        return 1 - sum(self.balance.seconds) / (len(self.costs) * self.pace)

    @property
    def devices_enough(self) -> int:
        """The least number of devices whose best cut is as fast as one stage a device."""
        pace = max(self.balance.seconds) * (1 + 1e-9)  # sums round
        return next(count for count in range(1, len(self.costs) + 1) if self.balance.best(count).slowest <= pace)

    @property
    def slowest(self) -> int:
        """The stage that sets PETRA's pace where messages take no time."""
        seconds = self.balance.seconds
        return max(range(len(seconds)), key=seconds.__getitem__)

    @property
    def share_of_slowest(self) -> float:
        """The part that the slowest stage has in the work of all."""
        return max(self.balance.seconds) / sum(self.balance.seconds)

    @property
    def machine(self) -> str:
        """The machine on which the stages were timed, and its load then."""
        environment, result = self.run.environments[-1], self.run.result
        name = environment["device"] if environment["device"] != "cpu" else environment["processor"]
        load = " and ".join(f"{load:.1f}" for load in result["load"])
        threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        return f"{name}, {threads}; load before and after {load} on {result['cores']} cores"


def timed_networks(sheet: Sheet) -> list[Modelled]:
    """Every network of a sheet whose stages were timed."""
    timed = sheet.done.loc[sheet.done["kind"] == "stage_costs", "cell"]
    return [Modelled(cast("Run[StageCostCell]", sheet.frames.by_name[name])) for name in timed]


@cache
def seconds_without_overlap(costs: tuple[Cost, ...], accumulation: int = 1) -> float:
    """Seconds for a micro-batch of reversible backpropagation without overlap, one device a stage, over ideal links."""
    micro_batches = 2 * accumulation + 1  # the first has no update before it
    order = of_method(methods.REVERSIBLE_BACKPROPAGATION, costs, [1] * len(costs), micro_batches, accumulation)
    return simulate(order, INSTANT).seconds_per_micro_batch()


@cache
def seconds_when_full(costs: tuple[Cost, ...], link: Link = INSTANT, accumulation: int = 1, fall: int = 2) -> float:
    """Seconds for a micro-batch in a full pipeline, one device a stage (`reproduce.modelling.pace`)."""
    from reproduce.modelling.pace import pace  # numpy, for which the plan of a grid does not wait

    return pace(costs, link, accumulation=accumulation, fall=fall)


def keeping_graphs(costs: Sequence[Cost]) -> list[Cost]:
    """The costs of stages that keep their graphs, from the costs of the same stages when they reconstruct.

    Reconstructing is an evaluation, so a backward is shorter by a forward, but not the head's, which keeps its graph
    under every method. A gradient alone goes down, of the size of what came up.
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
