"""Points at which two methods were trained alike but for k, learning rate and warm-up, as a map."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import rates
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.exhibits.divergence import broken, ended, furthest
from reproduce.exhibits.sheets import described
from reproduce.grids.plans.stability import COMPARED
from reproduce.records.results import Results, Run

__all__ = ["BREAKS", "COMPARED", "LARGEST", "NOT_RUN", "Map", "Point", "read_map", "stable_rates"]

BREAKS, LARGEST, NOT_RUN = "the next one breaks", "largest tried", "next not run"


@dataclass(frozen=True, order=True)
class Point:
    """A place of the map: epochs of warm-up, k, and the learning rate at 256 samples an update."""

    warmup: float
    k: int
    rate: float


@dataclass(frozen=True)
class Map:
    """The points of a scale.

    Attributes:
        scale: its name.
        cells: at every point the cell of each method.
        runs: those that are begun, likewise.

    """

    scale: str
    cells: Mapping[Point, Mapping[Method, TrainingCell]]
    runs: Mapping[Point, Mapping[Method, Run[Cell]]]

    @property
    def example(self) -> TrainingCell:
        """One of the cells."""
        return next(iter(next(iter(self.cells.values())).values()))

    @property
    def described(self) -> str:
        """The settings that all points share, in words."""
        return described(self.example, network=True).rpartition(", learning rate")[0]

    @property
    def warmups(self) -> list[float]:
        """Rising."""
        return sorted({point.warmup for point in self.cells})

    @property
    def accumulations(self) -> list[int]:
        """All k, rising."""
        return sorted({point.k for point in self.cells})

    @property
    def rates(self) -> list[float]:
        """Rising."""
        return sorted({point.rate for point in self.cells})

    @property
    def begun(self) -> bool:
        """Whether a point has a run that has ended."""
        return any(ended(run) for own in self.runs.values() for run in own.values())

    def accuracy(self, point: Point, method: Method) -> float | None:
        """Test accuracy, percent; None without a finished run."""
        run = self.runs[point].get(method)
        return float(run.result["test_accuracy"]) if run is not None and run.done else None

    def difference(self, point: Point) -> float | None:
        """PETRA less backpropagation, points; None if one of them is not finished."""
        ours, reference = (self.accuracy(point, method) for method in COMPARED)
        return None if ours is None or reference is None else ours - reference

    def broken(self, point: Point, method: Method) -> str:
        """Why the run there is broken; empty if it is not, or has not ended."""
        run = self.runs[point].get(method)
        return "" if run is None else broken(run)

    def ended(self, point: Point, method: Method) -> bool:
        """Whether it is known whether the run there is broken."""
        run = self.runs[point].get(method)
        return run is not None and ended(run)


def read_map(results: Results, scale: str, cells: Iterable[Cell]) -> Map | None:
    """The map of these cells; None if there are none."""
    planned: dict[Point, dict[Method, TrainingCell]] = {}
    for cell in cells:
        assert isinstance(cell, TrainingCell)
        point = Point(cell.warmup_epochs, cell.accumulation, rates.reference_of(cell))
        planned.setdefault(point, {})[methods.by_name(cell.method)] = cell
    runs = {
        point: {method: run for method, cell in own.items() if (run := furthest(results.of([cell]))) is not None}
        for point, own in planned.items()
    }
    return Map(scale, planned, runs) if planned else None


def stable_rates(found: Map, method: Method, warmup: float, k: int) -> tuple[float | None, str]:
    """The largest rate up to which nothing breaks, as far as is known.

    Returns:
        The rate, None if there is none; and what limits it: `BREAKS`, `LARGEST` or `NOT_RUN`.

    """
    largest = None
    for rate in found.rates:
        point = Point(warmup, k, rate)
        if point not in found.cells:
            continue
        if not found.ended(point, method):
            return largest, NOT_RUN
        if found.broken(point, method):
            return largest, BREAKS
        largest = rate
    return largest, LARGEST
