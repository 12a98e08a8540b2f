"""Beyond the paper: whether anything that is done about delay closes PETRA's gap, and what it keeps for that.

A cure may win at its own best learning rate only, so rates are tried with seed 0, and what is chosen there has to be
seen on other seeds. And it may cost what PETRA saves, so bytes stand beside points.
"""

from collections.abc import Iterator
from typing import Any

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.corrections import CURES, NOTHING, Cure, trials
from reproduce.records.frames import Frame, Sheet, over_training, settings_key
from reproduce.show import facets
from reproduce.show.compare import CHANCE, Sample, judge, means, measured, points
from reproduce.show.content import Entry, Finding
from reproduce.show.facets import facet
from reproduce.show.statistics import Verdict
from reproduce.show.tables import amount, entry, error, judged, mean, method, number, table, words
from reproduce.words import conjunction, count

BEST = 0  # the seed on which a learning rate is chosen
BOTTOM = 1  # the lowest stage that reconstructs its input
PETRA, EXACT = methods.PETRA, methods.BACKPROPAGATION
INTRODUCTION = (
    "Pipelined methods alone and with what the field does about delay: weights of the forward predicted along the "
    "momentum (FTPipe; linear: SpecTrain), the learning rate divided by the delay (PipeMare), the backward's weights "
    "taken back by an average (PipeMare's second rule), Gap-Aware, spike compensation, delay compensation (DC-ASGD), "
    "and NAdam with a momentum of 0.99. The second rule of PipeMare, spike and delay compensation are known from "
    "quotations only. Other learning rates are tried with seed 0 and shown on the others."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """Points lost by method and cure, at the recipe's learning rate; the best of three; what it keeps; longer runs."""
    tried = {settings_key(trial.cell): trial for trial in trials(sheet.scale)}
    every = sheet.runs.assign(
        cure=sheet.runs["settings"].map(lambda key: tried[key].cure.title),
        rate=sheet.runs["settings"].map(lambda key: tried[key].rate),
        megabytes=sheet.runs["peak_bytes"].astype(float) / 1e6,
    )
    runs = every[every["epochs"] == every["epochs"].min()]
    by = ["network", "k", "method", "cure", "rate"]
    accuracy, kept = (means(runs, value, by) for value in ("test_accuracy", "megabytes"))
    planned = list(dict.fromkeys((network, k, name, cure) for network, k, name, cure, _ in accuracy))
    late = [place for place in planned if place[2] != EXACT.name]

    def exact(place: tuple[Any, ...]) -> Sample:
        return accuracy[place[0], place[1], EXACT.name, NOTHING.title, 1.0]

    def gain(place: tuple[Any, ...]) -> Sample:
        """What a cure wins over the method alone, at the recipe's rate."""
        return accuracy[*place, 1.0] - accuracy[*place[:3], NOTHING.title, 1.0]

    less = judge(
        {place: accuracy[*place, 1.0] - exact(place) for place in late}
        | {("gain", *place): gain(place) for place in late if place[3] != NOTHING.title}
    )
    setting = sheet.described(width=False, rate=False)
    lost = [
        {"place": f"{network}, k = {k}", "method": name, "cure": cure, "points": value}
        for network, k, name, cure in late
        for value in (accuracy[network, k, name, cure, 1.0] - exact((network, k))).values.values()
    ]
    cured = [place for place in late if place[2] == PETRA.name and place[3] != NOTHING.title]
    won = {place: estimate for place in cured if (estimate := gain(place).estimate)}

    def share(place: tuple[Any, ...]) -> float | None:
        held, least = kept[*place, 1.0].estimate, kept[*place[:3], NOTHING.title, 1.0].estimate
        return held.mean / least.mean if held and least else None

    if won:
        best = max(won, key=lambda place: (won[place].n, won[place].mean))
        loss = points(exact(best) - accuracy[*best[:3], NOTHING.title, 1.0]).removeprefix("+")
        verdict = less["gain", *best].verdict.value
        yield Sentence(
            f"{best[0]}, k = {best[1]}: {best[3]} {points(gain(best))} of {loss} points lost "
            f"(n = {won[best].n}, {verdict}), for {share(best):.2f} times PETRA's bytes."
        )
        for said, sign in (("win", 1), ("lose", -1)):
            named = [
                f"{place[3]} ({place[0]}, k = {place[1]}: {points(gain(place))}{CHANCE * (not judgement.survives)})"
                for place in won
                for judgement in [less["gain", *place]]
                if judgement.verdict is Verdict.DIFFER and sign * won[place].mean > 0
            ]
            these = conjunction(named) or "none"
            yield Finding(f"Corrections: of {count(len(won), 'trial')} under PETRA these {said} points: {these}.")
    else:
        yield Sentence(f"Of no cure for delay under PETRA is there a pair of runs yet (scale “{sheet.scale}”).")
    yield facet(
        lost,
        [facets.rows([cure.title for cure in CURES], interval=True)],
        key=f"corrections-{sheet.key}",
        caption="Points lost to backpropagation, by what is done about delay, at the recipe's learning rate "
        f"({setting}). Dot: a seed; stroke: mean; line: 95 % interval.",
        x="points",
        y="cure",
        col="place",
        wrap=2,
        xlabel="points less backpropagation",
        legend="mark",
        share=(False, True),
        height=3.0,
    )
    lines = over_training(sheet.lines())
    lines = lines[(lines["stage"] == BOTTOM) & (lines["measure"] == "training/input")]
    lines = lines.assign(cure=lines["cell"].map(dict(zip(runs["cell"], runs["cure"], strict=True))))
    errors = measured(lines, "value", ["network", "k", "method", "cure"])
    exactness = sorted((e.mean, cure) for (*_, cure), sample in errors.items() if (e := sample.estimate))
    if exactness:
        said = "; ".join(f"{cure}: {value:.2g}" for value, cure in exactness)
        yield Finding(f"Corrections: relative error of the inputs that PETRA reconstructs at the bottom: {said}.")
    yield table(
        key=f"corrections-{sheet.key}",
        caption=f"What is done about delay, and what it wins and keeps ({setting}).",
        rows=late,
        fields=[
            words("network", lambda place: place[0]),
            number("k", lambda place: place[1]),
            method("method", lambda place: methods.by_name(place[2])),
            words("cure", lambda place: place[3]),
            mean("accuracy, %", lambda place: accuracy[*place, 1.0]),
            judged("points", lambda place: less[place], group="less backpropagation"),
            judged("points", lambda place: less.get(("gain", *place)), group="less the method alone"),
            mean("MB", lambda place: kept[*place, 1.0], 1, group="held, all stages"),
            amount("relative", share, 2, group="held, all stages", without="not run"),
            entry("rate", lambda place: _best(accuracy, place)[0], group=f"best rate, seed {BEST}"),
            mean("other seeds, %", lambda place: _best(accuracy, place)[1], group=f"best rate, seed {BEST}"),
            error("error, bottom", lambda place: errors[place], group="reconstructed"),
        ],
        notes=(
            "Rates are times the recipe's; a cross beside one: not all of them have been run. Bytes are the largest of "
            "each stage, summed up: old weights, averages and the optimizer's state included; relative: to the method "
            "alone.",
        ),
        grouped=True,
    )
    yield from _longer(sheet, every[every["epochs"] > every["epochs"].min()])


def _longer(sheet: Sheet, runs: Frame) -> Iterator[Shown]:
    """What is left of a gain after more epochs."""
    accuracy = means(runs, "test_accuracy", ["epochs", "method", "cure"])
    places = [place for place in accuracy if place[1] == PETRA.name]
    gains = {place: accuracy[place] - accuracy[place[0], PETRA.name, NOTHING.title] for place in places}
    less = judge(
        {place: accuracy[place] - accuracy[place[0], EXACT.name, NOTHING.title] for place in places}
        | {("gain", *place): sample for place, sample in gains.items() if place[2] != NOTHING.title}
    )
    if any(accuracy[place].values for place in places):
        yield table(
            key=f"corrections-{sheet.key}-longer",
            caption="The cures that won most, for longer, each at the best of its rates "
            f"({sheet.described(length=False, rate=False)}; PETRA, k = 1).",
            rows=places,
            fields=[
                number("epochs", lambda place: place[0]),
                words("cure", lambda place: place[2]),
                mean("accuracy, %", lambda place: accuracy[place]),
                judged("points", less.get, group="less backpropagation"),
                judged("points", lambda place: less.get(("gain", *place)), group="less PETRA alone"),
            ],
            grouped=True,
        )


def _best(accuracy: Any, place: tuple[Any, ...]) -> tuple[Entry, Sample]:
    """The learning rate with the best accuracy on the seed of the choice, and the accuracy of the other seeds there."""
    cure: Cure = next(cure for cure in CURES if cure.title == place[3])
    reached = {rate: accuracy[*place, rate].values.get(BEST) for rate in cure.rates}
    known = {rate: value for rate, value in reached.items() if value is not None}
    if not known:
        return Entry("not run"), Sample()
    best = max(known, key=lambda rate: known[rate])
    others = accuracy[*place, best].values.items()
    incomplete = "" if len(known) == len(reached) else " \N{MULTIPLICATION SIGN}"
    return Entry(f"{best:g}{incomplete}", best), Sample({seed: value for seed, value in others if seed != BEST})


EXHIBIT = Exhibit("corrections", "Corrections for delay: does anything close the gap?", INTRODUCTION, each)
