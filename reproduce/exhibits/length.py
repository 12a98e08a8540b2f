"""Beyond the paper: accuracy against the length of the training.

The paper trains for 300 epochs and reports a small gap. Trainings of a few epochs have a large one. Does PETRA reach
a lower accuracy, or the same accuracy later? And is the cause delay or reconstruction?
"""

import math
from collections.abc import Iterator

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.length import AGAINST, FOR, PETRA, SEEDS, VARIANTS, Variant
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import CHOSEN, Difference, bounded, means
from reproduce.presentation.content import Finding
from reproduce.presentation.tables import compared, judged, mean, number, table, words
from reproduce.records.frames import AVERAGED, RunSet
from reproduce.text import conjunction

INTRODUCTION = (
    "The same network is trained for several lengths, each with its whole schedule: the same warm-up in epochs, drops "
    "of the rate at the same fractions. Delayed gradients have exact inputs, so what they lose is lost to delay; with "
    "k = 4 gradients are fewer updates late. Accuracy and training loss are means over the last epochs, those after "
    f"the last drop, at most {AVERAGED}. “Best” is the paper's measure: the best epoch after the last drop, chosen by "
    "test accuracy. The rule at "
    f"“small”, for the last epoch: PETRA (k = 1) more than {AGAINST[1]:g} points below backpropagation after "
    f"{AGAINST[0]} epochs speaks against the paper's claim, within ± {FOR[1]:g} after {FOR[0]} for it, the whole "
    "interval each time. It was written before any of these runs, but outside the repository, which it entered, with "
    f"the step from three seeds to six, after the first two pairs of {AGAINST[0]} epochs."
)
EXACT = methods.BACKPROPAGATION.name
OUTCOMES = ("final_accuracy", "best_test_accuracy", "final_loss")


def gaps(run_set: RunSet, value: str) -> dict[tuple[Variant, int], Difference]:
    """Subtract a column of backpropagation at the same k from that of each variant, by variant and length."""
    reached = means(run_set.runs, value, ["method", "k", "epochs"])
    return {
        (variant, epochs): reached[variant.method.name, variant.k, epochs] - reached[EXACT, variant.k, epochs]
        for variant in VARIANTS
        for epochs, variants in SEEDS[run_set.scale].items()
        if variant in variants
    }


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield a figure, its numbers, and the verdict by the rule."""
    by = {value: gaps(run_set, value) for value in OUTCOMES}
    last = gaps(run_set, "test_accuracy")
    gap = by["final_accuracy"]
    late = means(run_set.runs, "final_accuracy", ["method", "k", "epochs"])
    places = list(gap)
    decided = {
        (variant, epochs): _decided(run_set.scale, variant, epochs, of) for (variant, epochs), of in last.items()
    }
    setting = run_set.described(network=True, length=False)
    known = {epochs: of for (variant, epochs), of in gap.items() if variant == PETRA and of.estimate}
    said = [f"{bounded(of)} after {epochs}" for epochs, of in known.items()]
    yield Sentence(
        f"PETRA − backpropagation at k = {PETRA.k} is {conjunction(said)} epochs, in points (scale “{run_set.scale}”)."
        if said
        else f"PETRA and backpropagation have not both been trained yet (scale “{run_set.scale}”).",
        known=bool(said),
    )
    runs = run_set.done[run_set.done["k"] == PETRA.k]
    yield facets.facet(
        runs,
        [facets.line("interval", gaps=True), facets.dots(apart=0.08), facets.cut_to(runs, "final_accuracy")],
        key=f"length-{run_set.key}",
        caption=f"Accuracy over the last epochs against the length of the training, k = {PETRA.k} ({setting}). Dot: a "
        "run; line: mean; band: 95 % interval; a method has a point only where it was run. Right: the difference to "
        "backpropagation at the same k; shaded: the margin of the verdicts.",
        x="epochs",
        y="final_accuracy",
        height=3.6,
        beside=[
            facets.differences(
                {
                    variant.title: {epochs: gap[of, epochs].estimate for of, epochs in places if of == variant}
                    for variant in dict.fromkeys(variant for variant, _ in places)
                },
                {variant.title: plots.COLOURS[variant.method] for variant in VARIANTS},
            )
        ],
        beside_label="points above backpropagation",
    )
    yield table(
        key=f"length-{run_set.key}",
        caption=f"Differences to backpropagation by the length of the training ({setting}).",
        rows=places,
        fields=[
            words("method", lambda place: place[0].title),
            number("epochs", lambda place: place[1]),
            mean("accuracy, %", lambda place: late[place[0].method.name, place[0].k, place[1]]),
            mean("backpropagation, %", lambda place: late[EXACT, place[0].k, place[1]]),
            judged("points", gap.get, group="accuracy, last epochs"),
            judged("points", by["best_test_accuracy"].get, group=f"accuracy, best{CHOSEN}"),
            compared("difference", by["final_loss"].get, 4, group="training loss, last epochs"),
            words("the paper's claim", decided.get),
        ],
        grouped=True,
    )
    if by_rule := "; ".join(filter(None, decided.values())):
        yield Finding(f"Training length: PETRA, k = {PETRA.k}, the paper's claim by the rule: {by_rule}.")


def _decided(scale: str, variant: Variant, epochs: int, gap: Difference) -> str:
    """Apply the rule to a gap; return an empty text for gaps that the rule does not cover."""
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


EXHIBIT = Exhibit("length", "Training length: does the gap close?", INTRODUCTION, each)
