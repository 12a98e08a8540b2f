"""Beyond the paper: compare guesses of the gradient, for training from the product of guess and gradient only."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from petra_core import methods
from reproduce import published
from reproduce.cells.kinds import FORWARD_GRADIENT
from reproduce.exhibits._exhibit import Shown, declare, notes, result, text_of
from reproduce.forward_gradients.settings import AXES, ForwardGradient, Guess
from reproduce.grids.plans.forward_gradients import NOISE
from reproduce.presentation import facets, plots, statements
from reproduce.presentation.compare import Difference, SeedSample, format_difference, means, measured_samples
from reproduce.presentation.content import Entry, missing
from reproduce.presentation.tables import amount, estimate_column, judged_columns, mean, published_value, table, words
from reproduce.records.benchmarks import ALLOCATED, SECONDS
from reproduce.records.frames import Frames, RunSet, over_training
from reproduce.text import conjunction

LOCAL_FG = ("mlp", "projection")  # auxiliary network and derivative in the results that LocalFG reports
BENCHMARK, STEP = "forward-gradients", "a step, over backpropagation"
SETTINGS = ["auxiliary", *AXES]
EXACT = (methods.BACKPROPAGATION.name, *[""] * len(SETTINGS))
LOOKS = {
    "": facets.Look("no guess", plots.INK),
    "global": facets.Look("target: global", plots.COLOURS[methods.PETRA]),
    "next": facets.Look("target: next block's", plots.COLOURS[methods.DSP], marker="s"),
    "local": facets.Look("target: local", plots.COLOURS[methods.DELAYED_GRADIENTS], marker="^"),
}


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield accuracy by guess, cosines by block, all numbers, and the published order."""
    runs = run_set.runs.assign(**{name: run_set.runs[name].fillna("") for name in SETTINGS})
    by = ["network", "method", *SETTINGS]
    places = dict(zip(runs["cell"], runs[by].itertuples(index=False, name=None), strict=True))
    accuracy = means(runs, "test_accuracy", by)
    gaps = {p: accuracy[p] - accuracy[p[0], *EXACT] for p in accuracy if p[1] == FORWARD_GRADIENT}
    guessed = [p for p in accuracy if p[3:5] == ("global", "local")]
    gains = {p: gain for p in guessed if (gain := _gain(p, accuracy, NOISE)).estimate}
    untrained = {p: _gain(p, accuracy, [Guess.REDRAWN]) for p in gains}
    first: dict[str, str] = {}  # by space, from its first gain
    for p, gain in gains.items():
        over = untrained[p]
        beside = f" ({format_difference(over)} over untrained auxiliary networks)" * bool(over.estimate)
        first.setdefault(p[5], f"{format_difference(gain, unit='points')} in {p[5]}{beside}")
    yield result(
        first,
        f"{run_set.after.capitalize()} the gradient of a local loss beats the best random guess by "
        f"{conjunction(list(first.values()))}.",
        f"The guesses have not been compared yet (scale “{run_set.scale}”).",
    )
    drawn = runs.assign(way=[_way(place) for place in places.values()], panel=runs["space"].replace("", "exact"))
    drawn = drawn.dropna(subset=["test_accuracy"])
    yield facets.facet(
        drawn,
        [facets.rows(list(dict.fromkeys(drawn["way"])), bounded=True)],
        key=f"forward-gradients-{run_set.key}",
        caption=f"Accuracy by guess ({run_set.describe(width=False)}). Dot: a seed; stroke: mean; line: 95 % interval.",
        x="test_accuracy",
        y="way",
        hue="target",
        looks=LOOKS,
        panels=facets.Panels(col="panel", titles=lambda _, panel: str(panel).replace("_", " "), height=3.4),
        legend="mark",
    )
    lines = run_set.lines().dropna(subset=["value"])
    lines = lines.assign(place=lines["cell"].map(places))
    lines = lines.assign(way=[f"{p[5]}: {_way(p)}, {p[3]} target".replace("_", " ") for p in lines["place"]])
    yield facets.facet(
        lines[[p[4] == Guess.LOCAL.value and p[3] != p[4] for p in lines["place"]]],
        [facets.line("range", marked=True), facets.zero],
        key=f"forward-cosines-{run_set.key}",
        caption=text_of("forward_gradients", "cosines", run_set=run_set),
        x=facets.Axis("point", label="epoch"),
        y=facets.Axis("value", label="cosine"),
        hue="stage",
        looks={n: replace(look, label=f"block {n}") for n, look in facets.rising(sorted(set(lines["stage"]))).items()},
        panels=facets.Panels(col="way", wrap=3, height=1.8),
    )
    costs = _costs(run_set.frames)
    cosines = measured_samples(over_training(lines), ["place", "stage"])
    last = max((stage for _, stage in cosines), default=0)
    yield table(
        key=f"forward-gradients-{run_set.key}",
        caption=f"Targets, guesses and spaces, and what they cost ({run_set.describe(width=False)}).",
        rows=sorted(accuracy, key=lambda place: place[1] == FORWARD_GRADIENT),
        fields=[
            words("network", lambda place: place[0], heading=True),
            words("guess", _way),
            words("target", lambda place: place[3]),
            words("space", lambda place: place[5].replace("_", " ")),
            mean("accuracy, %", lambda place: accuracy[place]),
            judged_columns(
                "points", lambda p: gaps.get(p, None if p[1] == EXACT[0] else ""), group="− backpropagation"
            ),
            estimate_column("lowest", lambda place: cosines[place, 0].estimate, group="cosine, block"),
            estimate_column("highest", lambda place: cosines[place, last].estimate, group="cosine, block"),
            amount("memory", lambda place: costs.get((_costing(place), ALLOCATED)), 2, group=STEP, without="not run"),
            amount("time", lambda place: costs.get((_costing(place), SECONDS)), 2, group=STEP, without="not run"),
            words("%", lambda place: _find_published(place)[0], group="published"),
            words("of", lambda place: _find_published(place)[1], group="published"),
        ],
        notes=notes("forward_gradients", "guesses", benchmark=BENCHMARK),
    )


def _costs(frames: Frames) -> dict[tuple[str, str], float]:
    """Return the median cost of a step, over backpropagation of the blocks, by contestant and quantity."""
    ratios: dict[tuple[str, str], float] = {}
    for benchmark in (record for record in frames.results.benchmarks if record.name == BENCHMARK):
        ratios |= {
            (comparison.first, comparison.quantity): benchmark.spread(comparison).median
            for comparison in benchmark.comparisons
        }
        ratios |= {(comparison.second, comparison.quantity): 1.0 for comparison in benchmark.comparisons}
    return ratios


def _costing(place: tuple[str, ...]) -> str:
    """Return the contestant of the benchmark that corresponds to a place."""
    if not place[4]:
        return methods.by_name(place[1]).title
    axes: dict[str, Any] = {name: kind(value) for (name, kind), value in zip(AXES.items(), place[3:], strict=True)}
    return str(ForwardGradient(**axes))


def _gain(place: tuple[str, ...], accuracy: dict[Any, SeedSample], others: Iterable[Guess]) -> Difference:
    """Return the gain of a guess over the best of others in otherwise equal settings; empty if none of them has run."""
    places = {(*place[:2], place[3], other.value, *place[5:7]) for other in others}
    known = [sample for p, sample in accuracy.items() if (*p[:2], *p[3:7]) in places and sample.values]
    best = max(known, key=lambda other: fmean(other.values.values()), default=SeedSample())
    return accuracy[place] - best


def _way(place: tuple[str, ...]) -> str:
    """Return the guess with its auxiliary network and unusual settings, or the title of a method without guesses."""
    _, method, auxiliary, target, guess, _, scaling, derivative = place
    if not guess:
        return methods.by_name(method).title
    noise = guess in {noise.value for noise in NOISE} and target == "global"
    unusual = [scaling] * (scaling != "projected") + [derivative] * (derivative != "projection")
    return ", ".join([guess, *[auxiliary] * (not noise), *unusual])


def _find_published(place: tuple[str, ...]) -> tuple[Entry, str]:
    """Return the published value and its source; unknown if it was not available, and empty for unrelated methods."""
    if place[1] not in (FORWARD_GRADIENT, EXACT[0]):
        return missing(""), ""
    row = published.forward_gradient_row(*place[3:7])
    if row is None or (row["work"] == "LocalFG" and (place[2], place[-1]) != LOCAL_FG):
        return statements.UNKNOWN, ""
    return published_value(row, "test_accuracy_percent"), f"{row['work']} {row['name']}"


EXHIBIT = declare("forward_gradients", each)
