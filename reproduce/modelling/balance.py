"""The cut of a network that keeps processes equally busy, from what its stages cost here and now.

No table of costs is right for the next machine, so every stage is timed on the spot, for some seconds, as the engine
would run it (`reproduce.measures.stage_costs`), and its bytes are predicted from shapes
(`petra_core.prediction.memory`). The cut does not change any result, so nothing but speed and memory depends on how
well that went.

Importing this module imports no torch, for which neither `--help` nor the plan of a grid waits: what times, and what
predicts bytes, comes when it is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from petra_core import methods
from petra_core.prediction import full_speed
from petra_core.prediction.footprint import Footprint, of_footprints
from petra_core.prediction.holding import peaks
from petra_core.prediction.orders import merged, of_method
from petra_core.prediction.partition import Cut, assess, plan
from petra_core.prediction.simulation import Cost, Link, simulate
from petra_core.prediction.timeline import Timeline
from petra_core.settings import Settings
from petra_core.shares import even_partition, runs
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import CellError, StageCostCell, TrainedCell

if TYPE_CHECKING:
    import torch

__all__ = ["Balance", "balanced", "measured", "of_training"]

REPETITIONS = 5  # timed turns of each stage


@dataclass(frozen=True)
class Balance:
    """The stages of a network (`cell` has its method and k) with their costs, and the cuts that follow from them.

    Attributes:
        cell: the network, its method and k.
        costs: of each stage.
        device: the device with whose kernels memory is predicted.
        staleness: of each stage; None: lockstep, or zero where the method is not pipelined.

    """

    cell: StageCostCell
    costs: tuple[Cost, ...]
    device: str = "cpu"
    staleness: tuple[int, ...] | None = None

    @classmethod
    def of_rows(cls, cell: StageCostCell, rows: Sequence[Mapping[str, Any]]) -> "Balance":
        """The balance of a network whose stages were timed (`stage_costs.timed`), from the medians."""
        return cls(
            cell,
            tuple(
                Cost(
                    row["forward"]["median"],
                    row["backward"]["median"],
                    row["update"]["median"],
                    row["bytes_up"],
                    row["bytes_down"],
                    row["parameters"],
                )
                for row in rows
            ),
        )

    @property
    def seconds(self) -> list[float]:
        """Seconds of each stage for a micro-batch, with its share of an update."""
        return [cost.forward + cost.backward + cost.update / self.cell.accumulation for cost in self.costs]

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Peak bytes of each stage, every kind at its own largest moment, on one device a stage."""
        method, accumulation = methods.by_name(self.cell.method), self.cell.accumulation
        settings = Settings(method=method, accumulation=accumulation, staleness=self.staleness)
        predicted = of_footprints(self.footprints, settings)
        return tuple(stage.total for stage in predicted)

    @property
    def footprints(self) -> tuple[Footprint, ...]:
        """Bytes that each stage takes for a micro-batch."""
        return _footprints(replace(self.cell, accumulation=1), self.device)  # they do not depend on k

    def even(self, processes: int) -> Cut:
        """The cut into equal numbers of stages. Raises: CellError: there are fewer stages than processes."""
        try:
            return assess(self.seconds, even_partition(len(self.costs), processes), held=self.held)
        except ValueError as error:
            raise CellError(str(error)) from None

    def best(self, processes: int, limit: int | None = None) -> Cut:
        """The cut whose slowest process is fastest, each holding at most `limit` bytes.

        Raises:
            CellError: there are fewer stages than processes, or no cut stays below the limit.

        """
        try:
            return plan(self.seconds, processes, held=self.held, limit=limit)
        except ValueError as error:
            raise CellError(str(error)) from None

    def simulated(self, cut: Cut, link: Link, micro_batches: int) -> Timeline:
        """The simulated run of `micro_batches` under a cut, event by event."""
        method, accumulation = methods.by_name(self.cell.method), self.cell.accumulation
        return simulate(of_method(method, self.costs, cut.partition, micro_batches, accumulation, self.staleness), link)

    def of_devices(self, cut: Cut) -> list[Cost]:
        """The costs of the devices of a cut: an update of a stage comes before the backwards of those below it."""
        k = self.cell.accumulation
        return [
            replace(cost, backward=cost.backward + (cost.update - lowest.update) / k, update=lowest.update)
            for cost, lowest in zip(
                merged(self.costs, cut.partition), (self.costs[run.start] for run in runs(cut.partition)), strict=True
            )
        ]

    def full_speed(self, cut: Cut, link: Link) -> tuple[tuple[int, ...], float]:
        """The smallest staleness of the devices of a cut that keeps full speed over a link, and the seconds it gives.

        Seconds are those between two micro-batches in steady state.
        """
        costs, k = self.of_devices(cut), self.cell.accumulation
        vector = full_speed.smallest(costs, link, k)
        return vector, full_speed.period(costs, vector, link, k)

    def peaks(self, timeline: Timeline) -> tuple[int, ...]:
        """The most bytes that every device holds at any time of a timeline."""
        method, footprints = methods.by_name(self.cell.method), self.footprints
        if method.double_buffered:  # a second version of the weights at every moment, not one that comes and goes
            footprints = tuple(replace(of, parameters=of.parameters + of.trainable) for of in footprints)
        return peaks(timeline, footprints, stashes_weights=method.stashes_weights and not method.double_buffered)


@cache
def _footprints(cell: StageCostCell, device: str) -> tuple[Footprint, ...]:
    import torch

    from petra_core.prediction.memory import footprints
    from reproduce.measures.synthetic import SGD, micro_batch

    with torch.device("meta"):
        images, labels = micro_batch(cell, catalogue.by_name(cell.dataset).num_classes)
    method, where = methods.by_name(cell.method), torch.device(device)
    return footprints(networks.outlined(cell), method, images, labels, optimizer=SGD, device=where)


def measured(
    cell: StageCostCell, device: "torch.device", begin: Callable[[int, int], None] = lambda index, count: None
) -> Balance:
    """Time the stages of the cell's network on `device`; arguments as of `stage_costs.timed`."""
    from reproduce.measures import stage_costs

    return replace(Balance.of_rows(cell, stage_costs.timed(cell, device, begin)), device=str(device))


def of_training(cell: TrainedCell, repetitions: int = REPETITIONS) -> StageCostCell:
    """The cell that times the stages of a network that is to be trained; in float32, whatever the precision."""
    shared = [field.name for field in fields(StageCostCell) if field.name not in ("scale", "seed", "repetitions")]
    settings = {name: getattr(cell, name) for name in shared}
    return StageCostCell(scale="custom", seed=0, repetitions=repetitions, **settings)


def balanced(cell: TrainedCell, processes: int, device: "torch.device", *, threads: int) -> tuple[int, ...]:
    """The number of stages of each process for training `cell`, balanced by timing them now.

    To be called once, before the processes start, each of `threads` and on such a device: timings differ, and all
    processes must agree on the cut.

    Raises:
        CellError: there are fewer stages than processes.

    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return measured(of_training(cell), device).best(processes).partition
    finally:
        torch.set_num_threads(before)
