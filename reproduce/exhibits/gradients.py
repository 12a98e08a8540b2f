"""The data of Figures 5 and 6: how good PETRA's gradients are, per stage and over training.

Records hold means over the micro-batches of an epoch, stage by stage. Averaging all of them at once, over epochs, seeds
and stages, gives one number and hides that seeds are few and epochs unlike. Here a `Study` is what differs in its seed
only; a run comes to one value a stage, or a value a stage and a stretch of training, and every estimate is over seeds.
What is compared is compared within a run: the same micro-batches at the same weights.

The question is whether PETRA's gradient lies closer to the end-to-end gradient than the delayed one does. `gain` is the
difference by which it does, and `judge` says by one rule what its interval means.
"""

import enum
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reproduce.cells import networks
from reproduce.cells.kinds import Cell, GradientsCell
from reproduce.exhibits.experiments import Network
from reproduce.grids import scales
from reproduce.grids.plans.gradients import cells
from reproduce.measures.names import MEASURES
from reproduce.records.record import Status
from reproduce.records.results import Results, Run
from reproduce.show.statements import Outcome
from reproduce.show.statistics import CONFIDENCE, Estimate, estimate, holm, p_value, without_spread

KeyT = TypeVar("KeyT", bound=Hashable)
Profile = dict[str, list[float | None]]  # "a/b/measure" -> a value for each stage, as in the records

METHOD, DELAYED, BETWEEN = "method/end_to_end", "delayed/end_to_end", "method/delayed"
PAIR_TITLES = {METHOD: "PETRA and end-to-end", DELAYED: "delayed and end-to-end", BETWEEN: "PETRA and delayed"}
MEASURE_TITLES = {"cosine": "cosine similarity", "norm_ratio": "norm ratio", "relative_error": "relative error"}
assert tuple(MEASURE_TITLES) == MEASURES

#: Measures of closeness, with the sign of a gain. A norm ratio is none: a gradient of the right length may be wrong.
CLOSENESS = {"cosine": 1, "relative_error": -1}


class Kind(enum.Enum):
    """What the backward of a stage evaluates its function at."""

    KEPT = "keeps its input"
    EXACT = "reversible, but handed down exactly what it evaluates F at"
    REBUILT = "reversible, evaluates F at a reconstructed input"

    @property
    def letter(self) -> str:
        """For axes."""
        return {Kind.KEPT: "K", Kind.EXACT: "E", Kind.REBUILT: "R"}[self]


def kinds(cell: GradientsCell) -> list[Kind]:
    """The kind of every stage of the cell's network.

    One stream of a reversible stage's output is a copy of the one that F took. So F is evaluated at an exact input
    wherever the stage above keeps its own.
    """
    keeps = [not stage.invertible for stage in networks.outlined(cell, num_classes=10)]
    return [
        Kind.KEPT if here else Kind.EXACT if above else Kind.REBUILT
        for here, above in zip(keeps, [*keeps[1:], True], strict=True)
    ]


@dataclass(frozen=True)
class Study:
    """Runs of one network and k that differ in their seed only.

    Attributes:
        planned: their cells, run or not.
        runs: those that have a value, by seed.
        states: of all, by seed: "done", "2 of 3 epochs", "not run".

    """

    planned: tuple[GradientsCell, ...]
    runs: Mapping[int, Run[Cell]]
    states: Mapping[int, str]

    @property
    def cell(self) -> GradientsCell:
        """The configuration, of one of them."""
        return self.planned[0]

    @property
    def network(self) -> Network:
        """What is trained."""
        return Network(self.cell.model, self.cell.stem, self.cell.width)

    @property
    def title(self) -> str:
        """As headings call it."""
        return f"{self.network.title}, k = {self.cell.accumulation}"

    @property
    def key(self) -> str:
        """For anchors."""
        return f"{self.cell.scale}-{self.network.key}-k{self.cell.accumulation}"

    @property
    def extent(self) -> str:
        """What there is of it: "3 seeds", or "2 of 3 seeds; seed 1: 2 of 3 epochs; seed 2: not run"."""
        rest = [f"seed {seed}: {state}" for seed, state in self.states.items() if state != Status.DONE.value]
        amount = f"{len(self.runs)} of {len(self.planned)}" if len(self.runs) < len(self.planned) else len(self.planned)
        return "; ".join([f"{amount} seed{'' if amount == 1 else 's'}", *rest])

    def profiles(self) -> dict[int, Profile]:
        """By seed the means over all micro-batches that were followed."""
        return {seed: mean_of(run.metrics) for seed, run in self.runs.items()}


def studies(results: Results, scale: str) -> list[Study]:
    """What the grid of a scale has, in its order; those of which nothing is begun are there without runs."""
    split: dict[tuple[Network, int], list[GradientsCell]] = {}
    for cell in cells(scale):
        assert isinstance(cell, GradientsCell)
        split.setdefault((Network(cell.model, cell.stem, cell.width), cell.accumulation), []).append(cell)
    return [_study(results, planned) for planned in split.values()]


def begun(results: Results) -> dict[str, list[Study]]:
    """By scale its studies, of the scales at which a micro-batch has been measured."""
    found = {scale: studies(results, scale) for scale in scales.SCALES}
    return {scale: every for scale, every in found.items() if any(study.runs for study in every)}


def _study(results: Results, planned: Sequence[GradientsCell]) -> Study:
    runs: dict[int, Run[Cell]] = {}
    states = {cell.seed: Status.NOT_RUN.value for cell in planned}
    for cell in planned:
        for run in results.of([cell]):
            if cell.seed not in runs or run.done:  # of two precisions the finished one
                states[cell.seed] = str(run.state)
                if any(line["probes"] for line in run.metrics):
                    runs[cell.seed] = run
    return Study(tuple(planned), runs, states)


def mean_of(lines: Sequence[Mapping[str, Any]]) -> Profile:
    """The mean of lines of metrics (or of single micro-batches), each weighed by its `probes`; None: not defined."""
    keys = dict.fromkeys(key for line in lines for key in line["measured"])
    found: Profile = {}
    for key in keys:
        own = [(line.get("probes", 1), line["measured"][key]) for line in lines if key in line["measured"]]
        stages = range(len(own[0][1]))
        found[key] = [_weighted([(weight, values[stage]) for weight, values in own]) for stage in stages]
    return found


def _weighted(values: Sequence[tuple[int, float | None]]) -> float | None:
    defined = [(weight, value) for weight, value in values if value is not None]
    total = sum(weight for weight, _ in defined)
    return math.fsum(weight * value for weight, value in defined) / total if total else None


def gain(profile: Profile, measure: str) -> list[float | None]:
    """By how much PETRA's gradient is closer to the end-to-end one than the delayed gradient; None: not defined."""
    pairs = zip(profile[f"{METHOD}/{measure}"], profile[f"{DELAYED}/{measure}"], strict=True)
    return [None if own is None or other is None else CLOSENESS[measure] * (own - other) for own, other in pairs]


def mean_gain(profile: Profile, measure: str) -> float | None:
    """The mean gain of the stages below the head, where both gradients are the same; None if it is defined at none."""
    defined = [value for value in gain(profile, measure)[:-1] if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def over_seeds(values: Mapping[int, float | None]) -> Estimate | None:
    """The estimate of what is defined; None if nothing is."""
    defined = [value for value in values.values() if value is not None]
    return estimate(defined) if defined else None


# --- the paper's statement


@dataclass(frozen=True)
class Check:
    """A gain, judged on its own and as one of a family.

    Attributes:
        gain: the estimate over seeds; positive where PETRA's gradient is closer.
        claim: agree if the 95 % interval is above 0, disagree if it is below, else (and with one seed) cannot tell.
        stands: whether the claim remains after Holm's correction for the number of comparisons in the family.

    """

    gain: Estimate
    claim: Outcome
    stands: bool


def judge(gains: Mapping[KeyT, Estimate]) -> dict[KeyT, Check]:
    """Judge a family of gains."""
    corrected = holm([p_value(found) for found in gains.values()])
    return {
        key: Check(found, _claim(found), _claim(found) is not Outcome.CANNOT_TELL and p < 1 - CONFIDENCE)
        for (key, found), p in zip(gains.items(), corrected, strict=True)
    }


def _claim(found: Estimate) -> Outcome:
    if found.low is None or found.high is None or without_spread(found) or found.low <= 0 <= found.high:
        return Outcome.CANNOT_TELL
    return Outcome.AGREE if found.low > 0 else Outcome.DISAGREE


def verdict(checks: Iterable[Check]) -> str:
    """Those claims in a word that stand: one that does not may be there by chance."""
    standing = {check.claim for check in checks if check.stands}
    return "mixed" if len(standing) > 1 else str((standing or {Outcome.CANNOT_TELL}).pop().value)


def tally(checks: Sequence[Check]) -> str:
    """How often which claim was made, and how often it stands."""
    words = []
    for claim in Outcome:
        own = [check for check in checks if check.claim is claim]
        standing = sum(check.stands for check in own)
        if own:
            after = "" if claim is Outcome.CANNOT_TELL else f", {standing} of them after Holm's correction"
            words.append(f"{claim.value} {len(own)}{after}")
    return "; ".join(words)


# --- over training

FEWEST = 3  # single micro-batches differ much


@dataclass(frozen=True)
class Stretch:
    """A stretch of training.

    Attributes:
        begin, end: epochs since the start of training.
        profiles: by seed the means over the micro-batches that were followed in it.

    """

    begin: float
    end: float
    profiles: Mapping[int, Profile]

    @property
    def middle(self) -> float:
        """Where a curve has its point."""
        return (self.begin + self.end) / 2


def stretches(study: Study, most: int) -> list[Stretch]:
    """Training in equal stretches, at most `most`, those left out in which nothing was measured.

    No stretch is shorter than an epoch, unless every record of the study has its micro-batches one by one; then none is
    so short that fewer than `FEWEST` of them are in it.
    """
    lines = [line for run in study.runs.values() for line in run.metrics]
    if not lines:
        return []
    fine = all("measured_at" in line for line in lines)
    epochs = study.cell.epochs
    finest = max(line["probes"] for line in lines) * epochs // FEWEST if fine else epochs
    count = max(1, min(most, finest))
    found: dict[int, dict[int, list[Mapping[str, Any]]]] = {}
    for seed, run in study.runs.items():
        for line in run.metrics:
            points = line["measured_at"] if fine else [line]
            for number, point in enumerate(points):
                # The micro-batches of an epoch are equally far apart.
                place = line["epoch"] - 1 + (number + 0.5) / len(points)
                found.setdefault(int(place * count / epochs), {}).setdefault(seed, []).append(point)
    profiles = {index: {seed: mean_of(own) for seed, own in by_seed.items()} for index, by_seed in found.items()}
    return [
        Stretch(index * epochs / count, (index + 1) * epochs / count, {s: p for s, p in profiles[index].items() if p})
        for index in sorted(profiles)
        if any(profiles[index].values())
    ]
