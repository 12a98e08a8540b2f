"""Runs that differ in their seed only, brought to a mean, and differences between such means.

A `Sample` is a measure by seed with what became of the seeds that have none, and with the spread of its study. A
`Difference` of two samples is unpaired (`reproduce.show.statistics` says why), and differences can be subtracted again:
the change of a gap is a difference of differences.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pandas import DataFrame, concat, notna

from reproduce.show.content import TIMES, Tone, with_sign
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.statistics import Estimate, ResidualSpread, ResidualStudy, Verdict, combine_means, estimate, verdict
from reproduce.words import conjunction, count

DONE, NOT_RUN = "done", "not run"
NO_PAIR = "not comparable yet"  # of a difference: one side has no finished run
CHOSEN = "\N{SECTION SIGN}"  # beside a value whose setting was chosen by test accuracy
MIXED = "\N{DOUBLE DAGGER}"  # beside a difference whose sides ran on different machines or versions


@dataclass(frozen=True)
class Sample:
    """A measure of runs that differ in their seed only."""

    values: Mapping[int, float] = field(default_factory=dict)  # by seed, of the finished runs
    #: What is known of every seed: "done", "2 of 3 epochs", "diverged (epoch 1 of 3)", "not run".
    states: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)  # by seed, the reasons of the failed ones
    #: By seed, why a run is broken (`reproduce.records.broken`).
    broken: Mapping[int, str] = field(default_factory=dict)
    #: By seed, the machine and the version of torch of the runs with a value; empty where that does not matter.
    machines: Mapping[int, str] = field(default_factory=dict)
    spread: ResidualSpread | None = None  # of its study; None: nothing but its own values is known

    def __sub__(self, other: "Sample") -> "Difference":
        return Difference(((1.0, self), (-1.0, other)))

    def without(self, seeds: Iterable[int]) -> "Sample":
        """Return the sample of the other seeds."""
        gone = set(seeds)
        known: tuple[Mapping[int, Any], ...] = (self.values, self.states, self.failures, self.broken, self.machines)
        values, states, failures, broken, machines = (
            {seed: of[seed] for seed in of if seed not in gone} for of in known
        )
        return Sample(values, states, failures, broken, machines, self.spread)

    @property
    def wrecks(self) -> int:
        """Number of seeds that have a value and are broken."""
        return len(self.values.keys() & self.broken.keys())

    @property
    def sound(self) -> "Sample":
        """The sample without its broken seeds; all of it where every seed is broken, which is an outcome."""
        if self.wrecks in (0, len(self.values)):
            return self
        return self.without(self.broken)

    @property
    def estimate(self) -> Estimate | None:
        """Mean with its 95 % interval; None without values."""
        return estimate(list(self.values.values()), self._spread) if self.values else None

    @property
    def _spread(self) -> ResidualSpread | None:
        """The study's spread; None for a sample with a broken run, which scatters in a way of its own."""
        return None if self.broken.keys() & self.values.keys() else self.spread

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


@dataclass(frozen=True)
class Difference:
    """A sum of samples with weights: a difference of two, or a difference of differences.

    A broken run decides no verdict: its value is as far from the others as chance determines, and so is their spread.
    The estimate is of the sound runs of each side, and `wrecks` says how many are broken. Only a side whose runs are
    all broken enters with these.
    """

    terms: tuple[tuple[float, Sample], ...]

    def __sub__(self, other: "Difference") -> "Difference":
        return Difference((*self.terms, *((-weight, sample) for weight, sample in other.terms)))

    @property
    def estimate(self) -> Estimate | None:
        """The difference with its 95 % interval; None where a side has no finished run."""
        sound = [(weight, sample.sound) for weight, sample in self.terms]
        return combine_means([(weight, list(of.values.values()), of._spread) for weight, of in sound])

    @property
    def wrecks(self) -> int:
        """Number of broken runs that have a value, on all sides."""
        return sum({id(sample): sample.wrecks for _, sample in self.terms}.values())

    @property
    def verdict(self) -> Verdict:
        return verdict(self.estimate)

    @property
    def mixed(self) -> str:
        """What the sides ran on, where that is not the same on all: "CPU and NVIDIA H200"; else empty."""
        sides = [frozenset(sample.sound.machines.values()) for _, sample in self.terms if sample.machines]
        if len(set(sides)) < 2:
            return ""
        return conjunction(sorted({machine for side in sides for machine in side}))


class Samples(dict[Any, Sample]):
    """Samples by place; where nothing was planned the sample is empty, which reads "not run"."""

    def __missing__(self, place: Hashable) -> Sample:
        return Sample()


def means(runs: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of a column of runs (`reproduce.records.frames`, a row a seed and place), a sample a place.

    A place is what the columns `by` have; a single one gives plain keys, several give tuples.
    """
    columns = ["seed", "status", "state", "reason", "broken", "machine", "study", value]
    samples = Samples()
    for place, rows in _places(runs, columns, by):
        done = [(int(row[0]), row[5], float(row[-1])) for row in rows if row[1] == DONE and notna(row[-1])]
        samples[place] = Sample(
            {seed: number for seed, _, number in done},
            {int(seed): state for seed, _, state, *_ in rows},
            {int(seed): reason for seed, status, _, reason, *_ in rows if status == "failed"},
            {int(seed): why for seed, _, _, _, why, *_ in rows if isinstance(why, str) and why},
            {seed: where for seed, where, _ in done},
            _shared_spread([study for *_, study, _ in rows], value),
        )
    return samples


def _shared_spread(studies: Iterable[Any], value: str) -> ResidualSpread | None:
    """Return the spread of a column in the one study that these rows are of; None if they are of several or of none."""
    known = {study.title: study for study in studies if isinstance(study, ResidualStudy)}
    return next(iter(known.values())).spreads.get(value) if len(known) == 1 else None


def interval(rows: DataFrame, value: str) -> tuple[float | None, float | None]:
    """Return the ends of the 95 % interval of the mean of rows of one place, for a drawing of runs.

    Rows that bring their ends with them, as columns `low` and `high`, have these.
    """
    if "low" in rows:
        low, high = (None if not notna(end := rows[name].iloc[0]) else float(end) for name in ("low", "high"))
        return low, high
    sound = "broken" not in rows or not (rows["broken"].fillna("") != "").any()
    spread = _shared_spread(rows["study"], value) if sound and "study" in rows else None
    known = estimate(list(rows[value].astype(float)), spread)
    return known.low, known.high


def measured(values: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of what was measured in runs, whether these are finished or not; see `means`.

    What was measured within a run, such as the difference of two gradients, is one value of the run.
    """
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


def points(difference: Difference) -> str:
    """Format a difference in points with its sign, and the number of broken runs."""
    estimate = difference.estimate
    broken = f" ({difference.wrecks} broken)" * bool(difference.wrecks)
    return f"{with_sign(estimate.mean, 1)}{broken}" if estimate else NO_PAIR


def bounded(difference: Difference, *, trailing: bool = False, unit: str = "") -> str:
    """Format a difference as mean ± half of the 95 % interval, with the mark of mixed machines and broken runs.

    Args:
        difference: In points.
        trailing: Whether it stands after "trails by", so that a loss is a positive number.
        unit: What follows the number: "points", or nothing.

    """
    known = difference.estimate
    if known is None:
        return NO_PAIR
    shown = difference if not trailing else Difference(tuple((-weight, sample) for weight, sample in difference.terms))
    assert shown.estimate is not None  # the same samples
    text = estimate_entry(shown.estimate, 1, sign=not trailing).text
    notes = ["one run each"] * (known.half_width is None) + [f"{difference.wrecks} broken"] * bool(difference.wrecks)
    beside = f" ({'; '.join(notes)})" * bool(notes)
    return f"{text}{MIXED * bool(difference.mixed)}{f' {unit}' * bool(unit)}{beside}"


def summarize(differences: Iterable[Difference | None]) -> str:
    """Say how many differences there are, of which verdict, and how large; empty if there are none."""
    known = [(of.verdict, estimate.mean) for of in differences if of is not None and (estimate := of.estimate)]
    if not known:
        return ""
    verdicts = Counter(verdict for verdict, _ in known)
    words = ", ".join(f"{verdicts[of]} {of.value}" for of in Verdict if of in verdicts)
    low, high = (with_sign(of(mean for _, mean in known), 1) for of in (min, max))
    sizes = f"of {low}" if low == high else f"from {low} to {high}"
    return f"{count(len(known), 'difference')} {sizes} points: {words}"
