"""Average runs that differ only in their seed, and compare the means.

A `SeedSample` contains the values and the states of its seeds, and the spread of its study. A `Difference` of samples
is unpaired (`reproduce.presentation.statistics` explains why).
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pandas import DataFrame, concat, notna

from reproduce.presentation.content import TIMES, Role, with_sign
from reproduce.presentation.content import estimate as estimate_entry
from reproduce.presentation.statistics import Estimate, ResidualSpread, ResidualStudy, Verdict, combine_means, verdict
from reproduce.text import conjunction, count

K = TypeVar("K")
DONE, NOT_RUN = "done", "not run"
NO_PAIR = "not comparable yet"  # text of a difference of which a side has no finished run
CHOSEN = "\N{SECTION SIGN}"  # mark of a value whose setting was chosen by test accuracy
MIXED = "\N{DOUBLE DAGGER}"  # mark of a difference whose sides ran on different machines or versions


@dataclass(frozen=True)
class SeedSample:
    """A measure of runs that differ only in their seed."""

    values: Mapping[int, float] = field(default_factory=dict)  # by seed, of the finished runs
    #: State of every seed: "done", "2 of 3 epochs", "diverged (epoch 1 of 3)", "not run".
    states: Mapping[int, str] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)  # by seed, the reasons of the failed runs
    #: By seed, the reason why a run is broken (`reproduce.records.broken`).
    broken: Mapping[int, str] = field(default_factory=dict)
    #: By seed, machine and torch version of the runs with a value; empty if they do not matter.
    machines: Mapping[int, str] = field(default_factory=dict)
    spread: ResidualSpread | None = None  # spread of its study; None if only the values themselves are known

    def __sub__(self, other: "SeedSample") -> "Difference":
        return Difference(((1.0, self), (-1.0, other)))

    def without(self, seeds: Collection[int]) -> "SeedSample":
        """Return the sample of the other seeds."""
        left = {
            name: {seed: value for seed, value in by_seed.items() if seed not in seeds}
            for name, by_seed in vars(self).items()
            if name != "spread"
        }
        return SeedSample(**left, spread=self.spread)

    @property
    def wrecks(self) -> int:
        """The number of seeds that have a value and are broken."""
        return len(self.values.keys() & self.broken.keys())

    @property
    def sound(self) -> "SeedSample":
        """The sample without its broken seeds; the whole sample if every seed is broken, which is a result too."""
        if self.wrecks in (0, len(self.values)):
            return self
        return self.without(self.broken)

    @property
    def estimate(self) -> Estimate | None:
        """Mean with its 95 % interval; None without values."""
        return combine_means([(1.0, list(self.values.values()), self._spread)])

    @property
    def _spread(self) -> ResidualSpread | None:
        """The study's spread; None for a sample with a broken run, whose scatter differs from the study's."""
        return None if self.wrecks else self.spread

    @property
    def ended(self) -> bool:
        """True if there are runs, and each of them either finished or is known to be broken."""
        return bool(self.states) and all(s == DONE or seed in self.broken for seed, s in self.states.items())

    @property
    def summary(self) -> str:
        """The different states of the seeds, to show instead of values: "not run", or "diverged; not run"."""
        amounts = Counter(self.states.values()) or Counter([NOT_RUN])
        if len(amounts) == 1:
            return next(iter(amounts))
        return "; ".join(f"{amount} {TIMES} {state}" if amount > 1 else state for state, amount in amounts.items())

    @property
    def unfinished(self) -> str:
        """The state of each unfinished seed: "seed 1: 3 of 8 epochs"; empty if all are finished."""
        return "; ".join(f"seed {seed}: {state}" for seed, state in self.states.items() if state != DONE)

    @property
    def seeds(self) -> str:
        """The number of seeds with a value, and the state of the others: "2 of 3; 1 diverged", "3; 1 broken"."""
        n = len(self.values)
        planned = len(self.states) or n
        failed = [f"{number} {reason}" for reason, number in Counter(self.failures.values()).items()]
        wrecks = [f"{self.wrecks} broken"] * bool(self.wrecks)
        return "; ".join([str(n) if n == planned else f"{n} of {planned}", *failed, *wrecks])


@dataclass(frozen=True)
class Difference:
    """A weighted sum of different samples: a difference of two, or the change of such a difference.

    A broken run must not decide a verdict: chance determines how far its value is from the others, and thereby the
    spread. The estimate uses only the sound runs of each side, and `wrecks` counts the broken ones. Only a side whose
    runs are all broken is represented by them.
    """

    terms: tuple[tuple[float, SeedSample], ...]

    @property
    def estimate(self) -> Estimate | None:
        """The difference with its 95 % interval; None if a side has no finished run."""
        sound = [(weight, sample.sound) for weight, sample in self.terms]
        return combine_means([(weight, list(sample.values.values()), sample._spread) for weight, sample in sound])

    @property
    def wrecks(self) -> int:
        """The number of broken runs that have a value, on all sides."""
        return sum(sample.wrecks for _, sample in self.terms)

    @property
    def has_interval(self) -> bool:
        return self.estimate is not None and self.estimate.half_width is not None

    @property
    def verdict(self) -> Verdict:
        return verdict(self.estimate)

    @property
    def mixed(self) -> str:
        """The machines of the sides, if they differ: "CPU and NVIDIA H200"; otherwise empty."""
        sides = [frozenset(sample.sound.machines.values()) for _, sample in self.terms if sample.machines]
        if len(set(sides)) < 2:
            return ""
        return conjunction(sorted({machine for side in sides for machine in side}))


class SeedSamples(dict[Any, SeedSample]):
    """Samples by place. A place that was not planned has an empty sample, which is displayed as "not run"."""

    def __missing__(self, place: Hashable) -> SeedSample:
        return SeedSample()


def means(runs: DataFrame, value: str, by: Sequence[str]) -> SeedSamples:
    """Return the samples of a column of runs, one for each place.

    Args:
        runs: A row for each seed and place (`reproduce.records.frames`).
        value: The column.
        by: The columns whose values form a place. A single column gives plain keys, several give tuples.

    Raises:
        ValueError: A place has two runs of one seed, so that the columns do not distinguish all settings.

    """
    columns = ["seed", "status", "state", "reason", "broken", "machine", "study", value]
    samples = SeedSamples()
    for place, rows in _places(runs, columns, by).items():
        if len({row[0] for row in rows}) < len(rows):
            raise ValueError(f"{place} has several runs of one seed: add the setting that differs to {', '.join(by)}")
        done = [(int(row[0]), row[5], float(row[-1])) for row in rows if row[1] == DONE and notna(row[-1])]
        samples[place] = SeedSample(
            {seed: number for seed, _, number in done},
            {int(seed): state for seed, _, state, *_ in rows},
            {int(seed): reason for seed, status, _, reason, *_ in rows if status == "failed"},
            {int(seed): why for seed, _, _, _, why, *_ in rows if isinstance(why, str) and why},
            {seed: where for seed, where, _ in done},
            _shared_spread([study for *_, study, _ in rows], value),
        )
    return samples


def sample_of(runs: DataFrame, value: str) -> SeedSample:
    """Return the sample of a column of runs that differ only in their seeds; empty without runs.

    Raises:
        ValueError: The runs have several settings.

    """
    samples = means(runs, value, ["settings"])
    if len(samples) > 1:
        raise ValueError(f"the runs have {len(samples)} settings, expected one: {', '.join(samples)}")
    return next(iter(samples.values()), SeedSample())


def differences(samples: SeedSamples, by: Sequence[str], **reference: Any) -> dict[Any, Difference]:
    """Return the difference of each place to its reference, for all places except the references themselves.

    Args:
        samples: Samples by place, as returned by `means` for several columns.
        by: Names of these columns.
        reference: Settings of the reference. Its other settings are those of the place that is compared with it.

    """
    gaps = {}
    for place in samples:
        exact = tuple(reference.get(name, value) for name, value in zip(by, place, strict=True))
        if exact != place:
            gaps[place] = samples[place] - samples[exact]
    return gaps


def _shared_spread(studies: Iterable[Any], value: str) -> ResidualSpread | None:
    """Return the spread of a column in the study of these rows; None if they belong to several studies or to none."""
    known = {study.title: study for study in studies if isinstance(study, ResidualStudy)}
    return next(iter(known.values())).spreads.get(value) if len(known) == 1 else None


def interval(rows: DataFrame, value: str) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval of the mean of the rows of one place, or None if there is no interval.

    If the rows have the columns `low` and `high`, these contain the ends.
    """
    if "low" in rows:
        low, high = rows["low"].iloc[0], rows["high"].iloc[0]
        return (float(low), float(high)) if notna(low) and notna(high) else None
    sound = "broken" not in rows or not (rows["broken"].fillna("") != "").any()
    spread = _shared_spread(rows["study"], value) if sound and "study" in rows else None
    known = combine_means([(1.0, list(rows[value].astype(float)), spread)])
    return None if known is None or known.low is None or known.high is None else (known.low, known.high)


def measured_samples(values: DataFrame, by: Sequence[str]) -> SeedSamples:
    """Return the samples of values measured during runs, whether these are finished or not; see `means`.

    A value measured during a run, such as the difference of two gradients, counts as one value of the run. It is in the
    column `value`.
    """
    places = _places(values.dropna(subset=["value"]), ["seed", "value"], by)
    return SeedSamples(
        {place: SeedSample({int(seed): float(number) for seed, number in rows}) for place, rows in places.items()}
    )


def _places(frame: DataFrame, columns: Sequence[str], by: Sequence[str]) -> dict[Any, list[tuple[Any, ...]]]:
    """Return the values of columns by place, in order of appearance. Rows without a place are left out.

    A loop over the groups of `DataFrame.groupby` makes a frame for each, which takes ten times as long.
    """
    places: dict[Any, list[tuple[Any, ...]]] = {}
    keys = frame[by[0]] if len(by) == 1 else zip(*(frame[name] for name in by), strict=True)
    for place, row in zip(keys, zip(*(frame[name] for name in columns), strict=True), strict=True):
        parts = (place,) if len(by) == 1 else place
        if all(notna(part) for part in parts):
            places.setdefault(place, []).append(row)
    return places


def with_difference(
    runs: DataFrame, value: str, *, minuend: str, subtrahend: str, by: Sequence[str], title: str
) -> DataFrame:
    """Return the runs of two methods, and their differences as if they were the runs of a third method.

    Args:
        runs: Runs of both methods, and of others, which are left out.
        value: The column that is subtracted.
        minuend: The method that is subtracted from.
        subtrahend: The method that is subtracted.
        by: The columns in which two runs must agree to be subtracted.
        title: Text in the column `method` of the differences.

    Returns:
        The columns `by` and `value` with `method`, `broken` (for a difference: why one of its runs is broken) and
        `difference` (whether the row is a difference). If a run has no value, the difference has none.

    """
    columns = [*by, "method", value, "broken"]
    ours, others = (runs.loc[runs["method"] == name, columns].astype({value: float}) for name in (minuend, subtrahend))
    both = ours.merge(others, on=list(by), suffixes=("", "_less"))
    both[value] -= both[f"{value}_less"]
    both["broken"] = both["broken"].where(both["broken"] != "", both["broken_less"])
    differences = both[columns].assign(method=title, difference=True)
    return concat([ours.assign(difference=False), others.assign(difference=False), differences], ignore_index=True)


def agreement(parts: DataFrame, one: str, other: str) -> tuple[str, Role]:
    """State in how many numbers two counts of the same stages agree. Any disagreement is an alert.

    Args:
        parts: A frame of `reproduce.records.frames.Frames.parts`.
        one: Value of the column `of` for one count.
        other: Value of the column `of` for the other count.

    """
    counts = parts[parts["of"].isin([one, other])].pivot(index=["cell", "stage", "kind"], columns="of", values="value")
    equal = int((counts[one] == counts[other]).sum())
    words = f"{equal} of {len(counts)} numbers (cell, stage, kind)"
    return words, Role.GOOD if equal == len(counts) else Role.ALERT


# --- as text


def format_difference(difference: Difference, *, trailing: bool = False, unit: str = "") -> str:
    """Format a difference as mean ± half-width of the 95 % interval, with the marks for mixed machines and broken runs.

    Args:
        difference: In points.
        trailing: Whether the text follows "trails by", so that a loss is a positive number.
        unit: Text after the number: "points", or empty.

    """
    known = difference.estimate
    if known is None:
        return NO_PAIR
    signed = difference if not trailing else Difference(tuple((-weight, sample) for weight, sample in difference.terms))
    assert signed.estimate is not None  # same samples, so an estimate exists
    text = estimate_entry(signed.estimate, 1, sign=not trailing).text
    runs = "one run each" if set(known.counts) == {1} else f"{known.n} runs"
    notes = [runs] * (known.half_width is None) + [f"{difference.wrecks} broken"] * bool(difference.wrecks)
    beside = f" ({'; '.join(notes)})" * bool(notes)
    return f"{text}{MIXED * bool(difference.mixed)}{f' {unit}' * bool(unit)}{beside}"


def with_intervals(gaps: Mapping[K, Difference]) -> Mapping[K, Difference]:
    """Return the differences that have an interval, or all of them if none has one."""
    return {at: gap for at, gap in gaps.items() if gap.has_interval} or gaps


def list_differences(gaps: Mapping[str, Difference], *, trailing: bool = False, unit: str = "") -> list[str]:
    """Format the differences that are known, each followed by its key; see `format_difference`."""
    known = {name: gap for name, gap in gaps.items() if gap.estimate}
    return [f"{format_difference(gap, trailing=trailing, unit=unit)} {name}" for name, gap in known.items()]


def summarize(differences: Iterable[Difference | None]) -> str:
    """Summarize differences: their number, their verdicts and their range; empty if there are none."""
    known = [
        (difference.verdict, estimate.mean)
        for difference in differences
        if difference is not None and (estimate := difference.estimate)
    ]
    if not known:
        return ""
    verdicts = Counter(verdict for verdict, _ in known)
    words = ", ".join(f"{verdicts[kind]} {kind.value}" for kind in Verdict if kind in verdicts)
    low, high = (with_sign(end(mean for _, mean in known), 1) for end in (min, max))
    sizes = f"of {low}" if low == high else f"from {low} to {high}"
    return f"{count(len(known), 'difference')} {sizes} points: {words}"
