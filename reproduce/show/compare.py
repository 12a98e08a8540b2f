"""Runs that differ in their seed only, brought to a mean, and compared with others seed by seed.

A `Sample` is a measure by seed with what became of the seeds that have none. Samples are subtracted over the seeds that
both have, which is what makes a comparison of three seeds worth anything (`reproduce.show.statistics`), and a
difference is a sample again: the change of a gap is a difference of differences.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pandas import DataFrame, notna

from reproduce.show.content import TIMES, with_sign
from reproduce.show.statistics import Estimate, Judgement, Verdict, estimate
from reproduce.show.statistics import judge as judge_estimates
from reproduce.words import count

__all__ = ["CHANCE", "DONE", "Sample", "Samples", "counted", "family_note", "judge", "means", "measured", "reported"]

DONE, NOT_RUN = "done", "not run"
CHANCE = "\N{DAGGER}"  # beside a verdict that does not survive Holm's correction


@dataclass(frozen=True)
class Sample:
    """A measure of runs that differ in their seed only.

    Attributes:
        values: by seed, of the finished runs.
        states: what is known of every seed: "done", "2 of 3 epochs", "diverged (epoch 1 of 3)", "not run".
        failures: reasons of the failed ones.

    """

    values: Mapping[int, float] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    def __sub__(self, other: "Sample") -> "Sample":
        """The difference over the seeds that both have."""
        shared = sorted(self.values.keys() & other.values.keys())
        return Sample({seed: self.values[seed] - other.values[seed] for seed in shared})

    @property
    def estimate(self) -> Estimate | None:
        """Mean with its 95 % interval; None without values."""
        return estimate(list(self.values.values())) if self.values else None

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
        """How many have a value, of how many, and what became of the failed: "2 of 3; 1 diverged"."""
        n, planned = len(self.values), len(self.states)
        failed = [f"{self.failures.count(reason)} {reason}" for reason in dict.fromkeys(self.failures)]
        return "; ".join([str(n) if n == planned else f"{n} of {planned}", *failed])


class Samples(dict[Any, Sample]):
    """By place; where nothing was planned the sample is empty, which reads "not run"."""

    def __missing__(self, place: Hashable) -> Sample:
        return Sample()


def means(runs: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of one column of runs (`reproduce.records.frames`), a sample a place.

    Args:
        runs: rows, one a seed and place.
        value: the column.
        by: the columns that are a place; a single one gives plain keys, several give tuples.

    """
    samples = Samples()
    for place, group in runs.groupby(list(by), sort=False):
        rows = list(zip(group["seed"], group["status"], group["state"], group["reason"], group[value], strict=True))
        key = place[0] if len(by) == 1 else place
        samples[key] = Sample(
            {int(seed): float(number) for seed, status, _, _, number in rows if status == DONE and notna(number)},
            {int(seed): state for seed, _, state, _, _ in rows},
            tuple(reason for _, status, _, reason, _ in rows if status == "failed"),
        )
    return samples


def measured(values: DataFrame, value: str, by: Sequence[str]) -> Samples:
    """The samples of what was measured in runs, whether these are finished or not; see `means`.

    Args:
        values: rows, one a seed and place; NaN is no value.
        value: the column.
        by: the columns that are a place.

    """
    samples = Samples()
    for place, group in values.dropna(subset=[value]).groupby(list(by), sort=False):
        own = {int(seed): float(number) for seed, number in zip(group["seed"], group[value], strict=True)}
        samples[place[0] if len(by) == 1 else place] = Sample(own, dict.fromkeys(own, DONE))
    return samples


def judge(differences: Mapping[Any, Sample]) -> dict[Any, Judgement]:
    """Judge differences as one family, such as those of one table: one call is one family of Holm's."""
    return judge_estimates({place: difference.estimate for place, difference in differences.items()})


# --- a family in words


def counted(judgements: Iterable[Judgement]) -> str:
    """How many comparisons, how many of each verdict, and how many survive; empty if there are none."""
    made = [judgement for judgement in judgements if judgement.difference is not None]
    if not made:
        return ""
    verdicts = [judgement.verdict for judgement in made]
    words = ", ".join(f"{v.value} {verdicts.count(v)}" for v in Verdict if v in verdicts)
    differ = verdicts.count(Verdict.DIFFER)
    stand = f" ({sum(j.stands for j in made)} after Holm's correction)" if differ and len(made) > 1 else ""
    return f"{count(len(made), 'comparison')}: {words}{stand}"


def reported(judgements: Iterable[Judgement]) -> str:
    """As `counted`, and how large the differences of accuracy are; empty if there are none."""
    judgements = list(judgements)
    sizes = sorted(j.difference.mean for j in judgements if j.difference is not None)
    if not sizes:
        return ""
    low, high = (with_sign(mean, 1) for mean in (sizes[0], sizes[-1]))
    return f"{counted(judgements)}, {f'mean {low}' if low == high else f'means from {low} to {high}'} points"


def family_note(judgements: Iterable[Judgement]) -> str:
    """What the number of comparisons in a table means for its verdicts."""
    words = counted(judgements)
    if not words:
        return "No comparison can be made yet."
    return (
        f"{words}. A verdict is of one comparison by itself, and one in twenty such intervals excludes 0 though "
        f"nothing differs; {CHANCE}: does not survive Holm's correction for all comparisons of the table."
    )
