"""Find the partition that balances the load of processes, from the costs of the stages on this machine.

No table of costs is right for the next machine. So every stage is timed for some seconds on the spot, as the engine
would run it (`reproduce.measures.stage_costs`), and its bytes are predicted from shapes
(`petra_core.prediction.memory`). The partition does not change any result, so only speed and memory depend on the
accuracy of the times.

Importing this module does not import torch, so that `--help` and the plan of a grid stay fast. The modules that measure
times and predict bytes are imported when they are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from petra_core import methods
from petra_core.methods import Method
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
from reproduce.cells.kinds import CellError, MemoryCell, ShapedCell, StageCostCell, TrainedCell

if TYPE_CHECKING:
    import torch

__all__ = ["Balance", "balanced", "footprints", "measured", "of_training"]

REPETITIONS = 5  # timed repetitions of each stage


@dataclass(frozen=True)
class Balance:
    """The stages of a network with their costs, and the partitions that follow from them.

    Attributes:
        cell: Network, method and k.
        costs: Cost of each stage.
        device: Device whose kernels determine the predicted memory.
        staleness: Staleness of each stage; None for lockstep, or for zero if the method is not pipelined.

    """

    cell: StageCostCell
    costs: tuple[Cost, ...]
    device: str = "cpu"
    staleness: tuple[int, ...] | None = None

    @classmethod
    def of_rows(cls, cell: StageCostCell, rows: Sequence[Mapping[str, Any]]) -> "Balance":
        """Make the balance of a network whose stages were timed (`stage_costs.timed`), from the medians."""
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
        """Seconds of each stage per micro-batch, including its share of an update."""
        return [cost.forward + cost.backward + cost.update / self.cell.accumulation for cost in self.costs]

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Peak bytes of each stage with one stage per device, every kind at its largest moment."""
        method, accumulation = methods.by_name(self.cell.method), self.cell.accumulation
        settings = Settings(method=method, accumulation=accumulation, staleness=self.staleness)
        predicted = of_footprints(self.footprints, settings)
        return tuple(stage.total for stage in predicted)

    @property
    def footprints(self) -> tuple[Footprint, ...]:
        """Bytes that each stage needs per micro-batch."""
        return footprints(self.cell, self.device)

    def even(self, processes: int) -> Cut:
        """Return the partition into equal numbers of stages.

        Raises:
            CellError: There are fewer stages than processes.

        """
        try:
            return assess(self.seconds, even_partition(len(self.costs), processes), held=self.held)
        except ValueError as error:
            raise CellError(str(error)) from None

    def best(self, processes: int, limit: int | None = None) -> Cut:
        """Return the partition whose slowest process is fastest, if each process holds at most `limit` bytes.

        Raises:
            CellError: There are fewer stages than processes, or no partition stays below the limit.

        """
        try:
            return plan(self.seconds, processes, held=self.held, limit=limit)
        except ValueError as error:
            raise CellError(str(error)) from None

    def simulated(self, cut: Cut, link: Link, micro_batches: int) -> Timeline:
        """Simulate the run of `micro_batches` under a partition, event by event."""
        method, accumulation = methods.by_name(self.cell.method), self.cell.accumulation
        return simulate(of_method(method, self.costs, cut.partition, micro_batches, accumulation, self.staleness), link)

    def of_devices(self, cut: Cut) -> list[Cost]:
        """Return the costs of the devices of a partition. An update precedes the backwards of the stages below."""
        k = self.cell.accumulation
        return [
            replace(cost, backward=cost.backward + (cost.update - lowest.update) / k, update=lowest.update)
            for cost, lowest in zip(
                merged(self.costs, cut.partition), (self.costs[run.start] for run in runs(cut.partition)), strict=True
            )
        ]

    def full_speed(self, cut: Cut, link: Link) -> tuple[tuple[int, ...], float]:
        """Return the smallest staleness of devices with full speed over a link, and the resulting seconds.

        The seconds are those between two micro-batches in steady state.
        """
        costs, k = self.of_devices(cut), self.cell.accumulation
        vector = full_speed.smallest(costs, link, k)
        return vector, full_speed.period(costs, vector, link, k)

    def peaks(self, timeline: Timeline) -> tuple[int, ...]:
        """Return the most bytes that each device holds at any time of a timeline."""
        method, footprints = methods.by_name(self.cell.method), self.footprints
        if method.double_buffered:  # always a second version of the weights, not a temporary one
            footprints = tuple(replace(of, parameters=of.parameters + of.trainable) for of in footprints)
        return peaks(timeline, footprints, stashes_weights=method.stashes_weights and not method.double_buffered)


def _keeping(method: Method) -> tuple[bool, bool, bool]:
    """Return the properties of a method on which footprints depend."""
    return method.keeps_graph, method.reconstructs, method.overlapped


def footprints(cell: ShapedCell, device: str = "cpu") -> tuple[Footprint, ...]:
    """Return the bytes that each stage of a network takes for a micro-batch, trained by SGD with momentum.

    Args:
        cell: The network, its images and its method.
        device: The device with whose kernels memory is predicted.

    """
    method = methods.by_name(cell.method)
    same = next(other for other in methods.ALL if _keeping(other) == _keeping(method))
    settings = {field.name: getattr(cell, field.name) for field in fields(MemoryCell)}
    settings |= {"scale": "custom", "method": same.name, "accumulation": 1, "seed": 0}
    return _footprints(MemoryCell(**settings), device)


@cache
def _footprints(cell: MemoryCell, device: str) -> tuple[Footprint, ...]:
    """Compute the footprints of a network once for all cells that have it, whatever their k, seed or scale."""
    import torch

    from petra_core.prediction import memory
    from reproduce.measures.synthetic import micro_batch

    with torch.device("meta"):
        images, labels = micro_batch(cell, catalogue.by_name(cell.dataset).num_classes)
    method, where = methods.by_name(cell.method), torch.device(device)
    of_stages = memory.footprints(networks.build_outline(cell), method, images, labels, device=where)
    # Momentum takes one buffer for each trainable weight. To ask the optimizer would take two fifths of the time.
    return tuple(replace(of, optimizer=of.trainable) for of in of_stages)


def measured(
    cell: StageCostCell, device: "torch.device", begin: Callable[[int, int], None] = lambda index, count: None
) -> Balance:
    """Time the stages of the cell's network on `device`. For `begin` see `stage_costs.timed`."""
    from reproduce.measures import stage_costs

    return replace(Balance.of_rows(cell, stage_costs.timed(cell, device, begin)), device=str(device))


def of_training(cell: TrainedCell, repetitions: int = REPETITIONS) -> StageCostCell:
    """Return the cell that times the stages of a network to be trained, in float32 for every precision."""
    shared = [field.name for field in fields(StageCostCell) if field.name not in ("scale", "seed", "repetitions")]
    settings = {name: getattr(cell, name) for name in shared}
    return StageCostCell(scale="custom", seed=0, repetitions=repetitions, **settings)


def balanced(cell: TrainedCell, processes: int, device: "torch.device", *, threads: int) -> tuple[int, ...]:
    """Return the number of stages of each process for training `cell`, balanced by timing them now.

    Call it once, before the processes start, with the threads and device of each process: timings differ between calls,
    and all processes must agree on the partition.

    Raises:
        CellError: There are fewer stages than processes.

    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return measured(of_training(cell), device).best(processes).partition
    finally:
        torch.set_num_threads(before)
