"""Beyond the paper: test whether a correction for delay closes PETRA's gap, and how much memory it needs.

A correction may win only at its best learning rate. Therefore rates are tried with seed 0, and the chosen rate is
tested on other seeds. A correction may use the memory that PETRA saves, so bytes are listed next to points. Another
optimizer may win for reasons unrelated to delay, so it is also compared with backpropagation by the same optimizer.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from petra_core import methods
from reproduce.cells.kinds import ReconstructionCell
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, result, text_of
from reproduce.exhibits.reconstruction import TRAINING, errors_at_bottom
from reproduce.grids.plans.corrections import MITIGATIONS, NOTHING, trials
from reproduce.presentation import compare, facets
from reproduce.presentation.compare import CHOSEN, DONE, Difference, SeedSamples, differences, means, measured_samples
from reproduce.presentation.content import MEGABYTE, Entry, Finding
from reproduce.presentation.statistics import Verdict
from reproduce.presentation.tables import Field, amount, error, judged_columns, mean, method, number, table, words
from reproduce.records.frames import RunSet, settings_key
from reproduce.text import conjunction, count

CHOICE = 0  # the seed that chooses a learning rate
LEAD = f"points above the next best rate with seed {CHOICE}"
PETRA, EXACT = methods.PETRA, methods.BACKPROPAGATION
Place = tuple[Any, ...]  # network, k, epochs (only for longer trainings), name of the method, title of the correction
BY = ["network", "k", "method", "mitigation"]


class Gaps(NamedTuple):
    """Differences by place.

    Attributes:
        exact: To backpropagation without a mitigation.
        alike: To backpropagation by the same optimizer, where there is one.
        plain: To the same method without a mitigation.

    """

    exact: Mapping[Place, Difference]
    alike: Mapping[Place, Difference]
    plain: Mapping[Place, Difference]


class Choice(NamedTuple):
    """The best learning rate in a place.

    Attributes:
        rate: The rate, as a multiple of the recipe's.
        incomplete: Whether planned rates have not been run yet.
        reached: Accuracy with the seed that chose it.
        lead: Points above the next best rate.

    """

    rate: float
    incomplete: bool
    reached: float
    lead: float


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
    accuracy, kept = (means(recipes, value, BY) for value in ("test_accuracy", "megabytes"))
    by_rate, kept_by_rate = (means(runs, value, [*BY, "rate"]) for value in ("test_accuracy", "megabytes"))
    best = _choose_rates(by_rate)
    others = SeedSamples({place: by_rate[*place, best[place].rate].without([CHOICE]) for place in best})
    kept_at_best = SeedSamples({place: kept_by_rate[*place, best[place].rate] for place in best})
    by_length = ["network", "k", "epochs", "method", "mitigation"]
    after = means(all_runs[all_runs["epochs"] > shortest], "test_accuracy", by_length)
    gaps, gaps_at_best, longer = _compare(accuracy, BY), _compare(others, BY), _compare(after, by_length)
    yield _sentence(run_set.scale, gaps, shortest, longer)
    yield from _findings(gaps, "At the recipe's rate")
    yield from _findings(gaps_at_best, "At best rates")
    yield from _findings(longer, "For longer")
    setting = run_set.describe(recipes, width=False, rate=False)
    yield facets.facet(
        [
            {"place": f"{place[0]}, k = {place[1]}", "method": place[2], "mitigation": place[3]}
            | {"points": value - exact.mean, "low": gap.low, "high": gap.high}
            for place, difference in gaps.exact.items()
            if place[2] != EXACT.name
            and (gap := difference.estimate)
            and (exact := accuracy[*place[:2], EXACT.name, NOTHING.title].estimate)
            for value in accuracy[place].values.values()
        ],
        [facets.rows([mitigation.title for mitigation in MITIGATIONS], bounded=True)],
        key=f"corrections-{run_set.key}",
        caption=text_of("corrections", "figure", setting=setting),
        x=facets.Axis("points", label="− backpropagation, points"),
        y="mitigation",
        panels=facets.Panels(col="place", wrap=2, height=3.0),
        legend="mark",
    )
    followed = set(recipes.loc[recipes["kind"] == ReconstructionCell.kind, BY].itertuples(index=False, name=None))
    lines = errors_at_bottom(run_set, runs[["cell", "mitigation"]])
    errors = measured_samples(lines[lines["measure"] == TRAINING], BY)
    place = [
        words("mitigation", lambda place: place[3], heading=True),
        words("network", lambda place: place[0]),
        number("k", lambda place: place[1]),
        method(lambda place: methods.by_name(place[2])),
    ]
    yield table(
        key=f"corrections-{run_set.key}",
        caption=text_of("corrections", "recipe", setting=setting),
        rows=[place for place in accuracy if place[2] != EXACT.name],
        fields=[
            *place,
            mean("accuracy, %", accuracy.get),
            *_differences(gaps),
            mean("MB", kept.get, 1, group="held, all stages"),
            amount("relative", partial(_share, kept), 2, group="held, all stages", without="not run"),
            error("error, bottom", lambda place: errors[place] if place in followed else None, group="reconstructed"),
        ],
        notes=notes("corrections", "recipe"),
    )
    if best:
        setting_of_rates = run_set.describe(runs, width=False, rate=False)
        yield table(
            key=f"corrections-{run_set.key}-rates",
            caption=text_of("corrections", "rates", seed=CHOICE, setting=setting_of_rates),
            rows=best,
            fields=[
                *place,
                number(f"rate{CHOSEN}", lambda place: _format_rate(best[place])),
                amount(f"seed {CHOICE}, %{CHOSEN}", lambda place: best[place].reached, 2),
                amount("lead", lambda place: best[place].lead, 2, hint=LEAD),
                mean("other seeds, %", others.get),
                *_differences(gaps_at_best),
                amount("held, relative", partial(_share, kept_at_best), 2, without="not run"),
            ],
            notes=notes("corrections", "rates"),
        )
    if any(sample.values for sample in after.values()):
        lasting = run_set.describe(all_runs[all_runs["epochs"] > shortest], length=False, rate=False)
        yield table(
            key=f"corrections-{run_set.key}-longer",
            caption=text_of("corrections", "longer", setting=lasting),
            rows=[place for place in after if place[-2] == PETRA.name],
            fields=[
                words(f"mitigation{CHOSEN}", lambda place: place[-1], heading=True),
                number("epochs", lambda place: place[2]),
                mean("accuracy, %", after.get),
                *_differences(longer),
            ],
            notes=[text_of("corrections", "chosen", epochs=count(shortest, "epoch"), seed=CHOICE)],
        )


def _share(kept: SeedSamples, place: Place) -> float | None:
    """Return the bytes kept, relative to the method without a mitigation."""
    held, least = kept[place].estimate, kept[*place[:-1], NOTHING.title].estimate
    return held.mean / least.mean if held and least else None


def _compare(accuracy: SeedSamples, by: Sequence[str]) -> Gaps:
    """Compare each place with backpropagation (also by the same optimizer) and with the method without a mitigation."""
    exact = differences(accuracy, by, method=EXACT.name, mitigation=NOTHING.title)
    alike = differences(accuracy, by, method=EXACT.name)
    plain = differences(accuracy, by, mitigation=NOTHING.title)
    plain = {place: gap for place, gap in plain.items() if place[-2] != EXACT.name}
    return Gaps(exact, {p: alike[p] for p in plain if (*p[:-2], EXACT.name, p[-1]) in accuracy}, plain)


def _differences(gaps: Gaps) -> list[Field]:
    def to_plain(place: Place) -> Difference | str | None:
        return gaps.plain.get(place, None if place[-1] == NOTHING.title else "")

    return [
        judged_columns("points", gaps.exact.get, group="− backpropagation"),
        judged_columns("points", lambda place: gaps.alike.get(place, ""), group="by the same optimizer"),
        judged_columns("points", to_plain, group="− the method without a mitigation"),
    ]


def _choose_rates(accuracy: SeedSamples) -> dict[Place, Choice]:
    """Return the best rate with seed `CHOICE` in each place where several rates were tried."""
    best = {}
    for place in dict.fromkeys((*place,) for *place, _ in accuracy):
        planned = next(mitigation.rates for mitigation in MITIGATIONS if mitigation.title == place[-1])
        samples = {rate: accuracy[*place, rate] for rate in planned}
        tried = {rate: sample.values[CHOICE] for rate, sample in samples.items() if CHOICE in sample.values}
        if len(tried) < 2:
            continue
        incomplete = any(s.states.get(CHOICE) != DONE and CHOICE not in s.broken for s in samples.values())
        (rate, reached), (_, second) = sorted(tried.items(), key=lambda item: -item[1])[:2]
        best[place] = Choice(rate, incomplete, reached, reached - second)
    return best


def _format_rate(choice: Choice) -> Entry:
    return Entry(f"{choice.rate:g}{'*' * choice.incomplete}", choice.rate)


def _of_petra(gaps: Mapping[Place, Difference]) -> dict[Place, Difference]:
    """Return the available differences under PETRA."""
    return {place: gap for place, gap in gaps.items() if place[-2] == PETRA.name and gap.estimate}


def _sentence(scale: str, gaps: Gaps, shortest: int, longer: Gaps) -> Sentence:
    """State how many corrections win under PETRA at the recipe's rate, and the gain in longer trainings.

    A gain in few epochs may only be faster convergence, particularly with another optimizer, and vanish at the end.
    """
    tried = _of_petra(gaps.plain)
    mitigations = dict.fromkeys(place[-1] for place in tried)
    win = [place for place, gap in tried.items() if gap.verdict is Verdict.HIGHER]
    won = conjunction(list(dict.fromkeys(place[-1] for place in win)))
    lost = sum(gap.verdict is Verdict.LOWER for gap in tried.values())
    later = _of_petra(longer.plain)
    last = max((place[2] for place in later), default=None)
    left = compare.list_differences({f"with {p[-1]}": gap for p, gap in later.items() if p[2] == last}, unit="points")
    ends = f"after {last} epochs the gain is {conjunction(left)}" if left else "none was followed for longer"
    return result(
        tried,
        f"After {count(shortest, 'epoch')} at the recipe's rate, {len(win)} of {count(len(tried), 'trial')} of "
        f"{count(len(mitigations), 'mitigation')} {'wins' if len(win) == 1 else 'win'} over PETRA without a mitigation"
        f"{f' ({won})' * bool(won)}, and {lost} {'loses' if lost == 1 else 'lose'} (not corrected for their number); "
        f"{ends}.",
        f"No mitigation for delay under PETRA can be compared yet (scale “{scale}”).",
    )


def _findings(gaps: Gaps, where: str) -> Iterator[Finding]:
    """Report which corrections win and which lose, among those under PETRA with an interval."""
    tried = {place: gap for place, gap in _of_petra(gaps.plain).items() if (e := gap.estimate) and e.low is not None}
    for words_of, verdict in (("win", Verdict.HIGHER), ("lose", Verdict.LOWER)) if tried else ():
        named = [_describe(place, gap) for place, gap in tried.items() if gap.verdict is verdict]
        yield Finding(
            f"{where}, of {count(len(tried), 'trial')} under PETRA with an interval these {words_of} "
            f"points: {conjunction(named) or 'none'}."
        )
    if alike := [_describe(place, gap, judged=True) for place, gap in _of_petra(gaps.alike).items()]:
        yield Finding(f"{where}, PETRA − backpropagation by the same optimizer: {conjunction(alike)}.")


def _describe(place: Place, gap: Difference, *, judged: bool = False) -> str:
    """Return a mitigation with its setting and its difference, and with the verdict if it is `judged`."""
    network, k, *epochs, _, mitigation = place
    setting = ", ".join([network, f"k = {k}", *(count(number, "epoch") for number in epochs)])
    return f"{mitigation} ({setting}: {compare.format_difference(gap)}{f', {gap.verdict.value}' * judged})"


EXHIBIT = declare("corrections", each)
