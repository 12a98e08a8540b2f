"""The runs of the study of depth: by k, number of stages and method, with what separates the methods."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, ReconstructionCell, TrainedCell
from reproduce.exhibits import divergence
from reproduce.exhibits.gradients import Profile, mean_of
from reproduce.grids.plans.depth import COMPARED
from reproduce.records.record import Status
from reproduce.records.results import Results, Run
from reproduce.show.content import some
from reproduce.show.statistics import Estimate, Judgement, estimate, judge, paired

__all__ = ["BREAK_POINTS", "COMPARED", "RULE", "STEPS", "Depths", "Place", "read_depths"]

#: What a difference between two of them is due to.
STEPS = {"reconstruction": (methods.PETRA, methods.DSP), "delay": (methods.DSP, methods.BACKPROPAGATION)}
BREAK_POINTS = 5.0

RULE = (
    f"{divergence.RULE} A method breaks at a depth if one of its runs is broken, or if its accuracy is more than "
    f"{BREAK_POINTS:g} points below that of backpropagation with an interval that excludes 0."
)


class Place(NamedTuple):
    """Where methods are compared."""

    k: int
    stages: int  # J


@dataclass(frozen=True)
class Depths:
    """The runs of a scale.

    Attributes:
        scale: its name.
        planned: by place and method the cells, one a seed.
        runs: by place, method and seed those that are begun.

    """

    scale: str
    planned: Mapping[tuple[Place, Method], Sequence[TrainedCell]]
    runs: Mapping[tuple[Place, Method], Mapping[int, Run[Cell]]]

    @property
    def example(self) -> TrainedCell:
        """One of the cells."""
        return next(iter(self.planned.values()))[0]

    @property
    def places(self) -> list[Place]:
        """By k, then J."""
        return sorted({place for place, _ in self.planned})

    @property
    def accumulations(self) -> list[int]:
        """All k, rising."""
        return sorted({place.k for place in self.places})

    @property
    def begun(self) -> bool:
        """Whether there is a value of any run."""
        return any(run.metrics or divergence.ended(run) for own in self.runs.values() for run in own.values())

    def extent(self, place: Place, method: Method) -> str:
        """What is missing of the runs, in words; empty if they are all finished."""
        own = self.runs[place, method]
        states = {
            c.seed: str(own[c.seed].state if c.seed in own else Status.NOT_RUN.value)
            for c in self._cells(place, method)
        }
        return some([f"seed {seed}: {state}" for seed, state in states.items() if state != Status.DONE.value])

    def accuracies(self, place: Place, method: Method) -> dict[int, float]:
        """Test accuracies of the finished runs by seed, percent."""
        return {seed: run.result["test_accuracy"] for seed, run in self.runs[place, method].items() if run.done}

    def accuracy(self, place: Place, method: Method) -> Estimate | None:
        """Their mean; None if there are none."""
        found = self.accuracies(place, method)
        return estimate(list(found.values())) if found else None

    def difference(self, place: Place, method: Method, reference: Method) -> Estimate | None:
        """Between two methods over the seeds that both have finished, points; None if there are none."""
        return paired(self.accuracies(place, method), self.accuracies(place, reference))

    def judgements(self) -> dict[tuple[Place, str], Judgement]:
        """Every step at every place, as one family; those do not count of which both methods have broken runs."""
        return judge(
            {
                (place, step): None if self.both_broken(place, step) else self.difference(place, *pair)
                for place in self.places
                for step, pair in STEPS.items()
            }
        )

    def both_broken(self, place: Place, step: str) -> bool:
        """Whether both methods of a step have a broken run: that two wrecks agree says nothing."""
        return all(any(map(divergence.broken, self.runs[place, method].values())) for method in STEPS[step])

    def breaks(self, place: Place, method: Method) -> str:
        """Why the method breaks there, in words; empty if it does not, or cannot be told."""
        own = self.runs[place, method]
        reasons = {seed: reason for seed, run in own.items() if (reason := divergence.broken(run))}
        if reasons:
            return some([f"seed {seed}: {reason}" for seed, reason in reasons.items()])
        below = self._below(place, method)
        if below is None or below.high is None or below.high >= 0:
            return ""
        return f"{-below.mean:.1f} points below backpropagation"

    def undecided(self, place: Place, method: Method) -> bool:
        """Whether it is that far below backpropagation, but by an interval that contains 0, or by one seed."""
        return not self.breaks(place, method) and self._below(place, method) is not None

    def _below(self, place: Place, method: Method) -> Estimate | None:
        """The difference to backpropagation if it is that large; else None."""
        difference = self.difference(place, method, methods.BACKPROPAGATION)
        return difference if difference is not None and difference.mean < -BREAK_POINTS else None

    def ended(self, place: Place, method: Method) -> bool:
        """Whether all its runs have ended."""
        done, planned = self.ends(place, method)
        return done == planned

    def ends(self, place: Place, method: Method) -> tuple[int, int]:
        """How many of its runs have ended, and how many there are to be."""
        done = sum(divergence.ended(run) for run in self.runs[place, method].values())
        return done, len(self._cells(place, method))

    def errors(self, place: Place) -> dict[int, Profile]:
        """By seed the mean errors of PETRA's rebuilt inputs, over all micro-batches that were followed."""
        found = {seed: mean_of(run.metrics) for seed, run in self.probed(place).items()}
        return {seed: profile for seed, profile in found.items() if profile}

    def probed(self, place: Place) -> dict[int, Run[Cell]]:
        """PETRA's runs by seed, those that measure reconstruction."""
        own = self.runs[place, methods.PETRA]
        return {seed: run for seed, run in own.items() if isinstance(run.cell, ReconstructionCell)}

    def _cells(self, place: Place, method: Method) -> Sequence[TrainedCell]:
        return self.planned.get((place, method), ())


def read_depths(results: Results, scale: str, cells: Iterable[Cell]) -> Depths | None:
    """The runs of these cells, all on chains; None if there are no cells."""
    planned: dict[tuple[Place, Method], list[TrainedCell]] = {}
    for cell in cells:
        assert isinstance(cell, TrainedCell)
        place = Place(cell.accumulation, int(cell.model.removeprefix("chain")) + 2)
        planned.setdefault((place, methods.by_name(cell.method)), []).append(cell)
    runs = {
        key: {cell.seed: run for cell in own if (run := divergence.furthest(results.of([cell]))) is not None}
        for key, own in planned.items()
    }
    return Depths(scale, planned, runs) if planned else None
