"""Define sweeps over all k of some networks and data sets: the cells of Table 2 and Figure 4."""

from dataclasses import dataclass

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.grids import recipes

ACCUMULATIONS = tuple(sorted(recipes.ACCUMULATIONS))
PETRA, BACKPROPAGATION = methods.PETRA, methods.BACKPROPAGATION


@dataclass(frozen=True)
class Sweep:
    """The cells of a scale: all k of some networks and data sets."""

    scale: str
    datasets: tuple[str, ...]
    depths: tuple[int, ...]
    accumulations: tuple[int, ...]  # in the order of the runs
    families: tuple[str, ...] = ("resnet", "revnet")

    def cell(self, dataset: str, network: str, method: Method, accumulation: int, seed: int = 0) -> TrainingCell:
        """Return the cell of a network and a method at k = `accumulation`, with micro-batches of PETRA's size."""
        return recipes.cell(self.scale, network, method, accumulation, seed, dataset=dataset)

    def baseline(self, dataset: str, network: str, seed: int = 0) -> TrainingCell:
        """Return backpropagation with the paper's batch, one per update; on `small` half, as PETRA's micro-batch."""
        batch = 64 if self.scale == "small" else recipes.BASELINE_BATCH[dataset]
        return recipes.cell(self.scale, network, BACKPROPAGATION, 1, seed, dataset=dataset, batch_size=batch)

    def rows(self, depth: int) -> tuple[tuple[str, Method], ...]:
        """Return networks and methods in the paper's order."""
        of_family = {"resnet": (BACKPROPAGATION,), "revnet": (BACKPROPAGATION, PETRA)}
        return tuple((f"{family}{depth}", method) for family in self.families for method in of_family[family])

    def cells(self, dataset: str, depth: int, seed: int = 0) -> list[TrainingCell]:
        """Return all cells of a data set and a depth for one seed, those of the paper's table first."""
        matched = [
            self.cell(dataset, network, method, k, seed)
            for k in self.accumulations
            for network, method in reversed(self.rows(depth))
        ]
        baselines = [self.baseline(dataset, f"{family}{depth}", seed) for family in reversed(self.families)]
        return [matched[0], *baselines, *matched[1:]]


PAPER = Sweep("paper", recipes.DATASETS, (18, 34, 50), recipes.ACCUMULATIONS)
NARROW = Sweep("narrow", ("cifar10",), (18,), (1, 4), ("revnet",))
SMALL = Sweep("small", ("cifar10",), (18,), (1, 4, 32, 2, 8, 16))  # the ends and the middle first
SWEEPS = {sweep.scale: sweep for sweep in (PAPER, NARROW, SMALL)}
