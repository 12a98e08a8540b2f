"""Beyond the paper: accuracy against the length of the training.

The paper trains for 300 epochs and reports a small gap. Trainings of a few epochs have a large one. Does PETRA reach
a lower accuracy, or the same accuracy later? And is the cause delay or reconstruction?
"""

import math
from collections import Counter
from collections.abc import Iterator

from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits._exhibit import Shown, declare, result, text_of
from reproduce.grids.plans.length import AGAINST, FOR, PETRA, SEEDS, VARIANTS, Variant
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import CHOSEN, DONE, Difference, list_differences, means
from reproduce.presentation.statistics import Estimate
from reproduce.presentation.tables import difference_column, judged_columns, mean, number, table, words
from reproduce.records.frames import AVERAGED, RunSet
from reproduce.text import conjunction, count

EXACT = methods.BACKPROPAGATION.name
OUTCOME, BY = "final_accuracy", ["method", "k", "epochs"]


def gaps(run_set: RunSet, value: str) -> dict[tuple[Variant, int], Difference]:
    """Return the differences of a column to backpropagation at the same k, by variant and length."""
    samples = means(run_set.runs, value, BY)
    return {
        (variant, epochs): samples[variant.method.name, variant.k, epochs] - samples[EXACT, variant.k, epochs]
        for variant in VARIANTS
        for epochs, variants in SEEDS[run_set.scale].items()
        if variant in variants
    }


def list_lost(runs: DataFrame) -> list[str]:
    """Return a note on the finished runs whose commits cannot be looked up; empty if there are none."""
    lost = runs.loc[(runs["status"] == DONE) & ~runs["traceable"].astype(bool), "epochs"]
    amounts = Counter(sorted(lost)).items()
    lengths = conjunction([f"{count(number, 'run')} of {epochs:.0f} epochs" for epochs, number in amounts])
    return [text_of("length", "lost", lengths=lengths)] * bool(lengths)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the differences to backpropagation by length, and the verdict by the rule."""
    accuracy, best, loss = (gaps(run_set, value) for value in (OUTCOME, "best_test_accuracy", "final_loss"))
    reached, last = means(run_set.runs, OUTCOME, BY), gaps(run_set, "test_accuracy")
    rule = {place: _decide(run_set.scale, *place, gap) for place, gap in last.items()}
    setting, key = run_set.describe(network=True, length=False), f"length-{run_set.key}"
    listed = list_differences(
        {f"after {epochs}": accuracy[variant, epochs] for variant, epochs in accuracy if variant == PETRA}
    )
    yield result(
        listed,
        f"PETRA − backpropagation at k = {PETRA.k} is {conjunction(listed)} epochs, in points (scale "
        f"“{run_set.scale}”).",
        f"PETRA and backpropagation have not both been trained yet (scale “{run_set.scale}”).",
    )
    by_variant: dict[str, dict[int, Estimate | None]] = {}
    for (variant, epochs), gap in accuracy.items():
        by_variant.setdefault(variant.title, {})[epochs] = gap.estimate
    colours = {variant.title: plots.COLOURS[variant.method] for variant in VARIANTS}
    yield facets.facet(
        run_set.done[run_set.done["k"] == PETRA.k],
        [facets.line("interval", gaps=True), facets.dots(apart=0.08), facets.cut_to()],
        key=key,
        caption=text_of("length", "figure", k=PETRA.k, setting=setting),
        x="epochs",
        y=OUTCOME,
        panels=facets.Panels(height=3.6),
        beside=facets.Beside([facets.differences(by_variant, colours)], "points above backpropagation"),
    )
    yield table(
        key=key,
        caption=f"Differences to backpropagation by the length of the training ({setting}).",
        rows=accuracy,
        fields=[
            words("method", lambda place: place[0].title, heading=True),
            number("epochs", lambda place: place[1]),
            mean("accuracy, %", lambda place: reached[place[0].method.name, place[0].k, place[1]]),
            mean("backpropagation, %", lambda place: reached[EXACT, place[0].k, place[1]]),
            judged_columns("points", accuracy.get, group="accuracy, last epochs"),
            judged_columns("points", best.get, group=f"accuracy, best{CHOSEN}"),
            difference_column("difference", lambda place: loss[place], 4, group="training loss, last epochs"),
            words("the paper's claim", rule.get),
        ],
        notes=list_lost(run_set.runs),
    )


def _decide(scale: str, variant: Variant, epochs: int, gap: Difference) -> str:
    """Apply the rule to the last epoch; return an empty text for places that the rule does not cover."""
    points, limit = gap.estimate, dict([AGAINST, FOR]).get(epochs)
    if (scale, variant) != ("small", PETRA) or limit is None or points is None:
        return ""
    low = -math.inf if points.low is None else points.low
    high = math.inf if points.high is None else points.high
    if epochs == AGAINST[0]:
        claim, holds, fails = "against", high < -limit, low > -limit
    else:
        claim, holds, fails = "for", max(-low, high) <= limit, high < -limit or low > limit
    return f"after {epochs}: {claim if holds else f'not {claim}' if fails else 'cannot tell'}"


EXHIBIT = declare("length", each, averaged=AVERAGED, against=AGAINST, agreed=FOR)
