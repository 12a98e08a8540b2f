"""Runs that differ in their seed only, brought to a mean, and compared with others seed by seed.

A `Sample` is a measure by seed with what became of the seeds that have none. Samples are subtracted over the seeds that
both have, which is what makes a comparison of three seeds worth anything (`reproduce.show.statistics`), and a
difference is a sample again: the change of a gap is a difference of differences.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pandas import DataFrame, concat, notna

from reproduce.show.content import TIMES, Tone, with_sign
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.statistics import Estimate, Judgement, Verdict, estimate
from reproduce.show.statistics import judge as judge_estimates
from reproduce.words import count

DONE, NOT_RUN = "done", "not run"
NO_PAIR = "no pair"  # of a difference: there is no seed with which both are finished, for whatever reason
CHANCE = "\N{DAGGER}"  # beside a verdict that does not survive Holm's correction


@dataclass(frozen=True)
class Sample:
    """A measure of runs that differ in their seed only."""

    values: Mapping[int, float] = field(default_factory=dict)  # by seed, of the finished runs
    #: What is known of every seed: "done", "2 of 3 epochs", "diverged (epoch 1 of 3)", "not run".
    states: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)  # by seed, the reasons of the failed ones
    #: By seed, why a run is broken (`reproduce.records.broken`).
    broken: Mapping[int, str] = field(default_factory=dict)

    def __sub__(self, other: "Sample") -> "Sample":
        """The difference over the seeds that both have; broken where a run of either is."""
        shared = sorted(self.values.keys() & other.values.keys())
        reasons = {**other.broken, **self.broken}
        return Sample(
            {seed: self.values[seed] - other.values[seed] for seed in shared},
            broken={seed: reasons[seed] for seed in shared if seed in reasons},
        )

    def without(self, seed: int) -> "Sample":
        """The sample of the other seeds."""
        known: tuple[Mapping[int, Any], ...] = (self.values, self.states, self.failures, self.broken)
        return Sample(*({other: of[other] for other in of if other != seed} for of in known))

    def less(self, value: float) -> "Sample":
        """The difference to a number that has no seeds, such as a published value."""
        return Sample({seed: number - value for seed, number in self.values.items()}, broken=self.broken)

    @property
    def wrecks(self) -> int:
        """Number of seeds that have a value and are broken."""
        return len(self.values.keys() & self.broken.keys())

    @property
    def sound(self) -> "Sample":
        """The sample without its broken seeds; all of it where every seed is broken, which is an outcome."""
        if self.wrecks in (0, len(self.values)):
            return self
        return Sample({seed: value for seed, value in self.values.items() if seed not in self.broken})

    @property
    def estimate(self) -> Estimate | None:
        """Mean with its 95 % interval; None without values."""
        return estimate(list(self.values.values())) if self.values else None

    @property
    def ended(self) -> bool:
        """Whether there are runs, and of all is known whether they are broken."""
        return bool(self.states) and all(s == DONE or seed in self.broken for seed, s in self.states.items())

    @property
    def summary(self) -> str:
        """What there is instead of values: "not run", if that is true of all, or, say, "diverged; not run"."""
        amounts = Counter(self.states.values()) or Counter([NOT_RUN])
        if len(amounts) == 1:
            return next(iter(amounts))
        return "; ".join(f"{amount} {TIMES} {state}" if amount > 1 else state for state, amount in amounts.items())

    @property
    def unfinished(self) -> str:
        """Seed by seed what is not done: "seed 1: 3 of 8 epochs"; empty if all is."""
        return "; ".join(f"seed {seed}: {state}" for seed, state in self.states.items() if state != DONE)

    @property
    def seeds(self) -> str:
        """How many have a value, of how many, and what became of the others: "2 of 3; 1 diverged", "3; 1 broken"."""
        n = len(self.values)
        planned = len(self.states) or n
        failed = [f"{number} {reason}" for reason, number in Counter(self.failures.values()).items()]
        wrecks = [f"{self.wrecks} broken"] * bool(self.wrecks)
        return "; ".join([str(n) if n == planned else f"{n} of {planned}", *failed, *wrecks])


class Samples(dict[Any, Sample]):
    """Samples by place; where nothing was planned the sample is empty, which reads "not run"."""

    def __missing__(self, place: Hashable) -> Sample:
        return Sample()


def means(runs: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of a column of runs (`reproduce.records.frames`, a row a seed and place), a sample a place.

    A place is what the columns `by` have; a single one gives plain keys, several give tuples.
    """
    columns = ["seed", "status", "state", "reason", "broken", value]
    samples = Samples()
    for place, rows in _places(runs, columns, by):
        samples[place] = Sample(
            {int(seed): float(number) for seed, status, *_, number in rows if status == DONE and notna(number)},
            {int(seed): state for seed, _, state, *_ in rows},
            {int(seed): reason for seed, status, _, reason, *_ in rows if status == "failed"},
            {int(seed): why for seed, *_, why, _ in rows if isinstance(why, str) and why},
        )
    return samples


def measured(values: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of what was measured in runs, whether these are finished or not; see `means`."""
    places = _places(values.dropna(subset=[value]), ["seed", value], by)
    return Samples({place: Sample({int(seed): float(number) for seed, number in rows}) for place, rows in places})


def _places(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    for place, group in frame.groupby(list(by), sort=False):
        yield place[0] if len(by) == 1 else place, list(zip(*(group[name] for name in columns), strict=True))


def with_difference(runs: DataFrame, value: str, *, of: str, less: str, by: Sequence[str], title: str) -> DataFrame:
    """The runs of two methods and, as if they were those of a third, their differences.

    Args:
        runs: of both methods, and of others, which are left out.
        value: the column that is subtracted.
        of: the method.
        less: what is subtracted from it.
        by: the columns in which runs must be alike to be subtracted.
        title: the method's name of the differences.

    Returns:
        Those columns with `method`, `broken` (of a difference: why one of the two is) and `difference`, whether the
        row is one. Where a run has no value the difference has none.

    """
    columns = [*by, "method", value, "broken"]
    ours, others = (runs.loc[runs["method"] == name, columns].astype({value: float}) for name in (of, less))
    both = ours.merge(others, on=list(by), suffixes=("", "_less"))
    both[value] -= both[f"{value}_less"]
    both["broken"] = both["broken"].where(both["broken"] != "", both["broken_less"])
    differences = both[columns].assign(method=title, difference=True)
    return concat([ours.assign(difference=False), others.assign(difference=False), differences], ignore_index=True)


def judge(differences: Mapping[Any, Sample]) -> dict[Any, Judgement]:
    """Judge differences as one family, such as those of one table: one call is one family of Holm's.

    A broken seed decides no verdict: its difference is as large as chance will have it, and so is the spread. Verdicts
    are of the sound seeds, and say how many were broken; only where all are broken, these are judged.
    """
    judgements = judge_estimates({place: difference.sound.estimate for place, difference in differences.items()})
    return {place: replace(judgement, broken=differences[place].wrecks) for place, judgement in judgements.items()}


def agreement(parts: DataFrame, one: str, other: str) -> tuple[str, Tone]:
    """In how many numbers two counts of the same stages are equal, in words, and that any other is an alert.

    Args:
        parts: of `reproduce.records.frames.Frames.parts`.
        one: its `of`.
        other: the other's.

    """
    counts = parts[parts["of"].isin([one, other])].pivot(index=["cell", "stage", "kind"], columns="of", values="value")
    equal = int((counts[one] == counts[other]).sum())
    words = f"{equal} of {len(counts)} numbers (cell, stage, kind)"
    return words, Tone.GOOD if equal == len(counts) else Tone.ALERT


# --- in words


def points(difference: Sample) -> str:
    """A mean difference in points with its sign, "no pair" without one; of the sound seeds, where there are any."""
    estimate = difference.sound.estimate
    return f"{with_sign(estimate.mean, 1)}{besides(difference)}" if estimate else NO_PAIR


def bounded(difference: Sample) -> str:
    """Likewise with half the 95 % interval; fewer seeds than three are said."""
    estimate = difference.sound.estimate
    return f"{bounded_mean(estimate)}{besides(difference)}" if estimate else NO_PAIR


def besides(difference: Sample) -> str:
    """How many seeds are broken, in parentheses; empty if none is."""
    return f" ({difference.wrecks} broken)" if difference.wrecks else ""


def bounded_mean(difference: Estimate) -> str:
    """Likewise of a mean difference that is there."""
    return estimate_entry(difference, 1, sign=True).text + {1: " (one seed)", 2: " (two seeds)"}.get(difference.n, "")


def counted(judgements: Iterable[Judgement]) -> str:
    """How many comparisons, how many of each verdict, and how many survive in their family; empty if there are none."""
    made = [judgement for judgement in judgements if judgement.difference is not None]
    if not made:
        return ""
    verdicts = [judgement.verdict for judgement in made]
    words = ", ".join(f"{v.value} {verdicts.count(v)}" for v in Verdict if v in verdicts)
    differ, family = verdicts.count(Verdict.DIFFER), made[0].family
    stand = f" ({sum(j.stands for j in made)} after Holm's correction for {family})" if differ and family > 1 else ""
    return f"{count(len(made), 'comparison')}: {words}{stand}"


def reported(judgements: Iterable[Judgement]) -> str:
    """How many comparisons of each verdict there are, and how large the differences are; empty if there are none."""
    judgements = list(judgements)
    sizes = sorted(j.difference.mean for j in judgements if j.difference is not None)
    if not sizes:
        return ""
    low, high = (with_sign(mean, 1) for mean in (sizes[0], sizes[-1]))
    return f"{counted(judgements)}, {f'mean {low}' if low == high else f'means from {low} to {high}'} points"


def family_note(judgements: Iterable[Judgement]) -> str:
    """What the number of comparisons in a table means for its verdicts."""
    judgements = list(judgements)
    words = counted(judgements)
    if not words:
        return "No comparison can be made yet."
    family = judgements[0].family
    return (
        f"{words}. A verdict is of one comparison by itself, and one in twenty such intervals excludes 0 though "
        f"nothing differs; {CHANCE}: does not survive Holm's correction for the {family} of the table that have an "
        "interval."
    )
