"""Describe networks whose stages were timed: costs, bytes and partitions, from which speed and memory are modelled.

Costs differ from machine to machine. So every stage is timed on the machine for some seconds, as the engine would run
it (`reproduce.measures.stage_costs`), and its bytes are predicted from shapes (`petra_core.prediction.memory`). The
partition does not change any result, so only speed and memory depend on the accuracy of the times. All devices are
assumed to equal the timed one.

Importing this module does not import torch, so that `--help` and the plan of a grid stay fast. The modules that measure
times and predict bytes are imported when they are called. Times are in seconds, sizes in bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction.footprint import Footprint, StagePrediction, predict_stages
from petra_core.prediction.partition import Cost, Partition, assess, find_partition
from petra_core.settings import Settings
from petra_core.shares import runs
from petra_core.staleness import lockstep
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import CellError, MemoryCell, ShapedCell, StageCostCell, TrainedCell
from reproduce.cells.timing import even_partition
from reproduce.drawing.timeline import Timeline
from reproduce.modelling.full_speed import period
from reproduce.modelling.simulation import Link, make_schedule, merge_costs, simulate
from reproduce.records.run import Run, hardware
from reproduce.text import count

if TYPE_CHECKING:
    import torch

    from reproduce.records.frames import RunSet

REPETITIONS = 5  # timed repetitions of each stage


@dataclass(frozen=True)
class TimedNetwork:
    """Stages of a network with their costs under a method, and what follows from them.

    Attributes:
        cell: Network and micro-batches.
        method: Training method.
        accumulation: Number of micro-batches per update, k.
        costs: Cost of each stage under the method.
        invertible: Whether each stage can be inverted.
        device: Device whose kernels determine the predicted memory.
        staleness: Staleness of each stage; None for lockstep, or for zero if the method is not pipelined.
        machine: Machine on which the stages were timed, and its load at that time.

    """

    cell: StageCostCell
    method: Method
    accumulation: int
    costs: tuple[Cost, ...]
    invertible: tuple[bool, ...]
    device: str = "cpu"
    staleness: tuple[int, ...] | None = None
    machine: str = ""

    @classmethod
    def from_rows(cls, cell: StageCostCell, rows: Sequence[Mapping[str, Any]], **settings: Any) -> "TimedNetwork":
        """Make the network whose stages were timed (`stage_costs.time_stages`), with the medians of the times."""
        costs = (
            Cost(
                *(row[name]["median"] for name in ("forward", "backward", "update")),
                *(row[name] for name in ("bytes_up", "bytes_down", "parameters")),
            )
            for row in rows
        )
        method, invertible = methods.by_name(cell.method), tuple(row["invertible"] for row in rows)
        return cls(cell, method, cell.accumulation, tuple(costs), invertible, **settings)

    @property
    def title(self) -> str:
        """Name of the network in tables, such as RevNet-18."""
        return self.cell.model.replace("revnet", "RevNet-")

    @property
    def seconds(self) -> list[float]:
        """Seconds of each stage per micro-batch, including its share of an update."""
        return [cost.forward + cost.backward + cost.update / self.accumulation for cost in self.costs]

    @property
    def footprints(self) -> tuple[Footprint, ...]:
        """Bytes that each stage needs per micro-batch."""
        return predict_footprints(self.cell, self.method, self.device)

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Peak bytes of each stage with one stage per device, every kind at its largest moment."""
        settings = Settings(method=self.method, accumulation=self.accumulation, staleness=self.staleness)
        return tuple(stage.total for stage in predict_stages(self.footprints, settings))

    def under(self, method: Method, accumulation: int) -> "TimedNetwork":
        """Return the network, which was timed under PETRA, under another method and k."""
        costs = convert_costs(method, self.costs, self.invertible)
        return replace(self, method=method, accumulation=accumulation, costs=costs)

    def even(self, processes: int) -> Partition:
        """Return the partition into equal numbers of stages."""
        return assess(self.seconds, even_partition(len(self.costs), processes), held=self.held)

    def best(self, processes: int, limit: int | None = None) -> Partition:
        """Return the partition whose slowest process is fastest, if each process holds at most `limit` bytes.

        Raises:
            CellError: There are fewer stages than processes, or no partition stays below the limit.

        """
        try:
            return find_partition(self.seconds, processes, held=self.held, limit=limit)
        except ValueError as error:
            raise CellError(str(error)) from None

    def simulate(self, sizes: Sequence[int], link: Link, micro_batches: int) -> Timeline:
        """Simulate the run of `micro_batches` with these numbers of stages per device, event by event."""
        schedule = make_schedule(self.method, sizes, micro_batches, self.accumulation, self.staleness)
        return simulate(schedule, self.costs, link)

    def merge(self, sizes: Sequence[int]) -> list[Cost]:
        """Return the costs of devices with these numbers of stages. Updates precede the backwards of lower stages."""
        lowest = [self.costs[run.start].update for run in runs(sizes)]
        return [
            replace(cost, backward=cost.backward + (cost.update - update) / self.accumulation, update=update)
            for cost, update in zip(merge_costs(self.costs, sizes), lowest, strict=True)
        ]

    @property
    def seconds_in_lockstep(self) -> float:
        """Seconds per micro-batch in a full pipeline in lockstep, one stage per device, links that take no time."""
        return period(self.costs, lockstep(len(self.costs)), accumulation=self.accumulation)

    @property
    def seconds_without_overlap(self) -> float:
        """Seconds per micro-batch if the next one enters when this one is done, under the same conditions."""
        return period(self.costs, (0,) * len(self.costs), accumulation=self.accumulation)

    @property
    def speedup(self) -> float:
        """Time of reversible backpropagation without overlap over that of PETRA, under the same conditions."""
        return self.seconds_without_overlap / self.seconds_in_lockstep

    @property
    def idle(self) -> float:
        """Share of the time in which a device of PETRA waits, with one stage per device, averaged over the devices."""
        return 1 - sum(self.seconds) / (len(self.costs) * self.seconds_in_lockstep)

    @property
    def devices_enough(self) -> int:
        """Smallest number of devices whose best partition is as fast as one stage per device."""
        slowest = max(self.seconds) * (1 + 1e-9)  # sums are rounded
        return next(number for number in range(1, len(self.costs) + 1) if self.best(number).slowest <= slowest)


def read_timed_networks(run_set: "RunSet") -> list[TimedNetwork]:
    """Return every network of a run set whose stages were timed."""
    timed = (run for run in run_set.finished if isinstance(run.cell, StageCostCell))
    return [TimedNetwork.from_rows(run.cell, run.result["stages"], machine=_machine(run)) for run in timed]


def _machine(run: Run[Any]) -> str:
    environment, result = run.environments[-1], run.result
    load = " and ".join(f"{load:.1f}" for load in result["load"])
    threads = count(environment["threads"], "thread")
    return f"{hardware(environment)}, {threads}; load before and after {load} on {result['cores']} cores"


def convert_costs(method: Method, costs: Sequence[Cost], invertible: Sequence[bool]) -> tuple[Cost, ...]:
    """Return the costs of stages under a method, from their costs under PETRA.

    Reconstructing is an evaluation, so the backward of a method that keeps graphs is shorter by a forward, except for
    the head, which keeps its graph under every method. A method that differentiates with other weights than it
    reconstructs with makes one evaluation more where it inverts. Only a method that reconstructs sends inputs down; the
    others send a gradient of the size of the message that came up.
    """

    def convert(stage: int, cost: Cost) -> Cost:
        if method.reconstructs:
            twice = method.stashes_weights and invertible[stage]
            return replace(cost, backward=cost.backward + cost.forward * twice)
        keeps = method.keeps_graph and stage < len(costs) - 1
        backward = max(0.0, cost.backward - cost.forward) if keeps else cost.backward
        return replace(cost, backward=backward, down=costs[stage - 1].up if stage else 0)

    return tuple(convert(stage, cost) for stage, cost in enumerate(costs))


def predict_footprints(cell: ShapedCell, method: Method, device: str = "cpu") -> tuple[Footprint, ...]:
    """Return the bytes that each stage of a network takes for a micro-batch, trained by SGD with momentum.

    Args:
        cell: The network and its images.
        method: The training method.
        device: The device with whose kernels memory is predicted.

    """
    same = next(other for other in methods.ALL if _properties(other) == _properties(method))
    shared = cell.converted(MemoryCell, scale="custom", method=same.name, accumulation=1, seed=0)
    return _footprints(shared, device)


def predict_held(cell: MemoryCell) -> tuple[StagePrediction, ...]:
    """Return the bytes that each stage of the network of a cell holds under its method in lockstep, from shapes."""
    method = methods.by_name(cell.method)
    settings = Settings(method=method, accumulation=cell.accumulation)
    return predict_stages(predict_footprints(cell, method), settings)


def _properties(method: Method) -> tuple[bool, bool, bool]:
    """Return the properties of a method on which footprints depend."""
    return method.keeps_graph, method.reconstructs, method.overlapped


@cache
def _footprints(cell: MemoryCell, device: str) -> tuple[Footprint, ...]:
    """Compute the footprints of a network once for all cells that have it, whatever their k, seed or scale."""
    import torch

    from petra_core.prediction import memory
    from reproduce.measures.synthetic import micro_batch

    with torch.device("meta"):
        images, labels = micro_batch(cell, catalogue.by_name(cell.dataset).num_classes)
    method, where = methods.by_name(cell.method), torch.device(device)
    per_stage = memory.footprints(networks.build_outline(cell), method, images, labels, device=where)
    # Momentum takes one buffer for each trainable weight. Making the optimizers would take two fifths of the time.
    return tuple(replace(footprint, optimizer=footprint.trainable) for footprint in per_stage)


def time_network(
    cell: StageCostCell, device: "torch.device", begin: Callable[[int, int], None] = lambda index, count: None
) -> TimedNetwork:
    """Time the stages of the cell's network on `device`. For `begin` see `stage_costs.time_stages`."""
    from reproduce.measures import stage_costs

    return TimedNetwork.from_rows(cell, stage_costs.time_stages(cell, device, begin), device=str(device))


def timing_cell(cell: TrainedCell, repetitions: int = REPETITIONS) -> StageCostCell:
    """Return the cell that times the stages of a network to be trained, in float32 for every precision."""
    return cell.converted(StageCostCell, scale="custom", seed=0, repetitions=repetitions)


def balance(cell: TrainedCell, processes: int, device: "torch.device", *, threads: int) -> tuple[int, ...]:
    """Return the number of stages of each process for training `cell`, balanced by timing them now.

    Call it once, before the processes start, with the threads and device of each process: timings differ between calls,
    and all processes must agree on the partition.

    Raises:
        CellError: There are fewer stages than processes.

    """
    import torch

    from reproduce.measures.machine_memory import give_back

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return time_network(timing_cell(cell), device).best(processes).sizes
    finally:
        torch.set_num_threads(before)
        give_back(device)  # the processes need this memory
