"""Beyond the paper: test whether a correction for delay closes PETRA's gap, and how much memory it needs.

A correction may win only at its best learning rate. Therefore rates are tried with seed 0, and the chosen rate is
tested on other seeds. A correction may use the memory that PETRA saves, so bytes are listed next to points. Another
optimizer may win for reasons unrelated to delay, so it is also compared with backpropagation by the same optimizer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from reproduce.cells.kinds import ReconstructionCell
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.corrections import MITIGATIONS, NOTHING, trials
from reproduce.presentation import facets
from reproduce.presentation.compare import (
    CHOSEN,
    DONE,
    Difference,
    SeedSamples,
    format_difference,
    means,
    measured_samples,
)
from reproduce.presentation.content import MEGABYTE, Entry, Finding
from reproduce.presentation.statistics import Verdict
from reproduce.presentation.tables import (
    BOTTOM,
    Field,
    amount,
    entry,
    error,
    judged_columns,
    mean,
    method,
    number,
    table,
    words,
)
from reproduce.records.frames import RunSet, over_training, settings_key
from reproduce.text import conjunction, count

CHOICE = 0  # the seed that chooses a learning rate
PETRA, EXACT = methods.PETRA, methods.BACKPROPAGATION
Place = tuple[Any, ...]  # network, k, epochs (only for longer trainings), name of the method, title of the correction
Gaps = dict[tuple[str, Place], Difference]  # by the comparison, a key of `_compare`, and place
INTRODUCTION = (
    "Pipelined methods without and with what the field does about delay: weights of the forward predicted along the "
    "momentum (FTPipe; linear: SpecTrain), the learning rate divided by the delay (PipeMare), the backward's weights "
    "taken back by an average (PipeMare's second rule), Gap-Aware, spike compensation, delay compensation (DC-ASGD), "
    "and NAdam with a momentum of 0.99. The second rule of PipeMare, spike and delay compensation are known from "
    "quotations only. Under PETRA other learning rates are tried with seed 0, and the best is shown on other seeds, as "
    "far as these have been run. NAdam is another optimizer, with which backpropagation is trained too."
)


@dataclass(frozen=True)
class _Runs:
    """Results in each place, either all at the recipe's learning rate or each at its best rate."""

    accuracy: SeedSamples
    kept: SeedSamples  # megabytes
    rates: Mapping[Place, Entry]  # times the recipe's
    chosen: Mapping[Place, float]  # accuracy with the seed that chose the rate
    leads: Mapping[Place, float]  # points above the next best rate; all three empty at the recipe's rate

    def share(self, place: Place) -> float | None:
        """Return the bytes kept, relative to the method without a correction."""
        held, least = self.kept[place].estimate, self.kept[_alone(place)].estimate
        return held.mean / least.mean if held and least else None


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield accuracy and memory by method and correction: at the recipe's rate, at the best rate, and for longer."""
    tried = {settings_key(trial.cell): trial for trial in trials(run_set.scale)}
    all_runs = run_set.runs.assign(
        mitigation=run_set.runs["settings"].map(lambda key: tried[key].mitigation.title),
        rate=run_set.runs["settings"].map(lambda key: tried[key].rate),
        megabytes=run_set.counted_bytes / MEGABYTE,
    )
    shortest = all_runs["epochs"].min()
    runs = all_runs[all_runs["epochs"] == shortest]
    recipes = runs[runs["rate"] == 1]
    by = ["network", "k", "method", "mitigation"]
    plain = _Runs(means(recipes, "test_accuracy", by), means(recipes, "megabytes", by), {}, {}, {})
    best = _at_best_rates(means(runs, "test_accuracy", [*by, "rate"]), means(runs, "megabytes", [*by, "rate"]))
    gaps, gaps_at_best = _compare(plain.accuracy), _compare(best.accuracy)
    after = means(
        all_runs[all_runs["epochs"] > shortest], "test_accuracy", ["network", "k", "epochs", "method", "mitigation"]
    )
    longer = _compare(after)
    yield _sentence(run_set.scale, gaps, shortest, longer)
    yield from _findings(gaps, "at the recipe's rate")
    yield from _findings(gaps_at_best, "at best rates")
    yield from _findings(longer, "for longer")
    setting = run_set.describe(recipes, width=False, rate=False)
    yield facets.facet(
        [
            {"place": f"{place[0]}, k = {place[1]}", "method": place[2], "mitigation": place[3]}
            | {"points": value - exact.mean, "low": gap.low, "high": gap.high}
            for place in plain.accuracy
            if place[2] != EXACT.name
            and (gap := (plain.accuracy[place] - plain.accuracy[_exact(place)]).estimate)
            and (exact := plain.accuracy[_exact(place)].estimate)
            for value in plain.accuracy[place].values.values()
        ],
        [facets.rows([mitigation.title for mitigation in MITIGATIONS], bounded=True)],
        key=f"corrections-{run_set.key}",
        caption="Points lost to backpropagation, by what is done about delay, at the recipe's learning rate "
        f"({setting}). Dot: a seed less the mean of backpropagation; stroke: mean; line: 95 % interval.",
        x=facets.Axis("points", label="− backpropagation, points"),
        y="mitigation",
        panels=facets.Panels(col="place", wrap=2, height=3.0),
        legend="mark",
    )
    followed = set(recipes.loc[recipes["kind"] == ReconstructionCell.kind, by].itertuples(index=False, name=None))
    lines = over_training(run_set.lines())
    lines = lines[(lines["stage"] == BOTTOM) & (lines["measure"] == "training/input")]
    lines = lines.assign(mitigation=lines["cell"].map(dict(zip(runs["cell"], runs["mitigation"], strict=True))))
    errors = measured_samples(lines, "value", by)
    if exactness := sorted(
        (e.mean, mitigation) for (*_, mitigation), sample in errors.items() if (e := sample.estimate)
    ):
        text = "; ".join(f"{mitigation}: {value:.2g}" for value, mitigation in exactness)
        yield Finding(f"Corrections: relative error of the inputs that PETRA reconstructs at the bottom: {text}.")
    place = [
        words("mitigation", lambda place: place[3]),
        words("network", lambda place: place[0]),
        number("k", lambda place: place[1]),
        method("method", lambda place: methods.by_name(place[2])),
    ]
    yield table(
        key=f"corrections-{run_set.key}",
        caption=f"What is done about delay, and what it wins and keeps, at the recipe's learning rate ({setting}).",
        rows=[place for place in plain.accuracy if place[2] != EXACT.name],
        fields=[
            *place,
            mean("accuracy, %", plain.accuracy.get),
            *_differences(gaps),
            mean("MB", plain.kept.get, 1, group="held, all stages"),
            amount("relative", plain.share, 2, group="held, all stages", without="not run"),
            error(
                "error, bottom",
                lambda place: errors[place] if place in followed else None,
                group="reconstructed",
            ),
        ],
        notes=(
            "Bytes are the largest of each stage, summed up: old weights, averages and the optimizer's state included; "
            "relative: to the method without a mitigation.",
        ),
        grouped=True,
    )
    if best.accuracy:
        yield table(
            key=f"corrections-{run_set.key}-rates",
            caption=f"Each at its best learning rate, chosen with seed {CHOICE}: what other seeds reach "
            f"({run_set.describe(runs, width=False, rate=False)}).",
            rows=list(best.accuracy),
            fields=[
                *place,
                entry(f"rate{CHOSEN}", best.rates.get),
                amount(f"seed {CHOICE}, %{CHOSEN}", best.chosen.get, 2),
                amount("lead", best.leads.get, 2, hint=f"points above the next best rate with seed {CHOICE}"),
                mean("other seeds, %", best.accuracy.get),
                *_differences(gaps_at_best),
                amount("held, relative", best.share, 2, without="not run"),
            ],
            notes=(
                "Rates are times the recipe's; a star: not all that are planned have been run. Where the lowest or the "
                "highest of them was best, a better one may lie beyond; a small lead is a choice by chance, also of "
                "the method without a mitigation.",
            ),
            grouped=True,
        )
    if any(sample.values for sample in after.values()):
        lasting = run_set.describe(all_runs[all_runs["epochs"] > shortest], length=False, rate=False)
        yield table(
            key=f"corrections-{run_set.key}-longer",
            caption="The mitigations that won most, for longer, each at its rate of the table before, PETRA without a "
            "mitigation "
            f"and backpropagation at the recipe's ({lasting}; k = 1).",
            rows=[place for place in after if place[-2] == PETRA.name],
            fields=[
                words(f"mitigation{CHOSEN}", lambda place: place[-1]),
                number("epochs", lambda place: place[2]),
                mean("accuracy, %", after.get),
                *_differences(longer),
            ],
            notes=(
                f"Rates were chosen after {count(shortest, 'epoch')}, mitigations after fewer epochs than these, with "
                "seed "
                f"{CHOICE} among others: these seeds had a part in the choice, and PETRA without a mitigation has the "
                "recipe's.",
            ),
            grouped=True,
        )


def _where(place: Place) -> str:
    network, k, *epochs, _, _ = place
    return ", ".join([network, f"k = {k}", *(count(number, "epoch") for number in epochs)])


def _alone(place: Place) -> Place:
    """Return the place of the same method without a correction."""
    return *place[:-1], NOTHING.title


def _exact(place: Place, mitigation: str = NOTHING.title) -> Place:
    """Return the place of backpropagation for the place of a pipelined method."""
    return *place[:-2], EXACT.name, mitigation


def _compare(accuracy: SeedSamples) -> Gaps:
    """Compare each place with backpropagation (also by the same optimizer) and with the method without a correction."""
    differences: Gaps = {}
    for place in accuracy:
        if place != _exact(place):
            differences["backpropagation", place] = accuracy[place] - accuracy[_exact(place)]
        if place != _alone(place) and place[-2] != EXACT.name:
            differences["without", place] = accuracy[place] - accuracy[_alone(place)]
            if _exact(place, place[-1]) in accuracy:
                differences["same optimizer", place] = accuracy[place] - accuracy[_exact(place, place[-1])]
    return differences


def _differences(gaps: Gaps) -> list[Field]:
    return [
        judged_columns("points", lambda place: gaps.get(("backpropagation", place)), group="− backpropagation"),
        judged_columns("points", lambda place: gaps.get(("same optimizer", place), ""), group="by the same optimizer"),
        judged_columns(
            "points",
            lambda place: gaps.get(("without", place), None if place == _alone(place) else ""),
            group="− the method without a mitigation",
        ),
    ]


def _at_best_rates(accuracy: SeedSamples, kept: SeedSamples) -> _Runs:
    """Return the results of other seeds at the best rate with seed `CHOICE`, if several rates were tried."""
    reached, held, rates, chosen, leads = SeedSamples(), SeedSamples(), {}, {}, {}
    for place in dict.fromkeys((*place,) for *place, _ in accuracy):
        planned = next(mitigation.rates for mitigation in MITIGATIONS if mitigation.title == place[-1])
        samples = {rate: accuracy[*place, rate] for rate in planned}
        tried = {rate: sample.values[CHOICE] for rate, sample in samples.items() if CHOICE in sample.values}
        to_come = [
            rate
            for rate, sample in samples.items()
            if sample.states.get(CHOICE) != DONE and CHOICE not in sample.broken
        ]
        if len(tried) < 2:
            continue
        rate = max(tried, key=lambda rate: tried[rate])
        chosen[place] = tried[rate]
        leads[place] = tried[rate] - max(value for other, value in tried.items() if other != rate)
        rates[place] = Entry(f"{rate:g}{'*' * bool(to_come)}", rate)
        reached[place] = samples[rate].without([CHOICE])
        held[place] = kept[*place, rate]
    return _Runs(reached, held, rates, chosen, leads)


def _of_petra(gaps: Gaps, kind: str) -> dict[Place, Difference]:
    """Return the available comparisons of a kind under PETRA."""
    return {
        place: difference
        for (comparison, place), difference in gaps.items()
        if comparison == kind and place[-2] == PETRA.name and difference.estimate
    }


def _sentence(scale: str, gaps: Gaps, shortest: int, longer: Gaps) -> Sentence:
    """State how many corrections win under PETRA at the recipe's rate, and the gain in longer trainings.

    A gain in few epochs may only be faster convergence, particularly with another optimizer, and vanish at the end.
    """
    tried = _of_petra(gaps, "without")
    if not tried:
        return Sentence(f"No mitigation for delay under PETRA can be compared yet (scale “{scale}”).", known=False)
    mitigations = dict.fromkeys(place[-1] for place in tried)
    win = [place for place, difference in tried.items() if difference.verdict is Verdict.HIGHER]
    won = conjunction(list(dict.fromkeys(place[-1] for place in win)))
    text = (
        f"After {count(shortest, 'epoch')}, {len(win)} of {count(len(tried), 'trial')} of "
        f"{count(len(mitigations), 'mitigation')} "
    )
    lost = sum(difference.verdict is Verdict.LOWER for difference in tried.values())
    text += f"{'wins' if len(win) == 1 else 'win'} over PETRA without a mitigation{f' ({won})' * bool(won)}"
    text += f", and {lost} {'loses' if lost == 1 else 'lose'} (not corrected for their number)"
    last = max((place[2] for place in _of_petra(longer, "without")), default=None)
    later = {place: gap for place, gap in _of_petra(longer, "without").items() if place[2] == last}
    left = [f"{format_difference(difference, unit='points')} with {place[-1]}" for place, difference in later.items()]
    ends = f"; after {last} epochs the gain is {conjunction(left)}" if left else "; none was followed for longer"
    return Sentence(f"{text}{ends}.")


def _findings(gaps: Gaps, where: str) -> Iterator[Finding]:
    """Report which corrections win and which lose, among those under PETRA with an interval."""
    tried = {
        place: gap for place, gap in _of_petra(gaps, "without").items() if gap.estimate and gap.estimate.low is not None
    }
    for words_of, verdict in (("win", Verdict.HIGHER), ("lose", Verdict.LOWER)) if tried else ():
        named = [
            f"{place[-1]} ({_where(place)}: {format_difference(difference)})"
            for place, difference in tried.items()
            if difference.verdict is verdict
        ]
        yield Finding(
            f"Corrections {where}: of {count(len(tried), 'trial')} under PETRA with an interval these {words_of} "
            f"points: {conjunction(named) or 'none'}."
        )
    alike = [
        f"{place[-1]} ({_where(place)}: {format_difference(difference)}, {difference.verdict.value})"
        for place, difference in _of_petra(gaps, "same optimizer").items()
    ]
    if alike:
        yield Finding(f"Corrections {where}: PETRA − backpropagation by the same optimizer: {conjunction(alike)}.")


EXHIBIT = Exhibit("corrections", "Corrections for delay: does anything close the gap?", INTRODUCTION, each)
