"""Beyond the paper: accuracy against the length of the training.

The paper trains for 300 epochs and reports a small gap. Trainings of a few epochs have a large one. Does PETRA reach
a lower accuracy, or the same accuracy later? And is the cause delay or reconstruction?
"""

import math
from collections.abc import Iterator

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.length import AGAINST, ARMS, FOR, PETRA, SEEDS, Arm
from reproduce.records.frames import AVERAGED, Sheet
from reproduce.show import facets, plots
from reproduce.show.compare import CHOSEN, Difference, bounded, means
from reproduce.show.content import Finding
from reproduce.show.tables import compared, judged, mean, number, table, words
from reproduce.words import conjunction

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


def gaps(sheet: Sheet, value: str) -> dict[tuple[Arm, int], Difference]:
    """Subtract a column of backpropagation at the same k from that of each arm, by arm and length."""
    reached = means(sheet.runs, value, ["method", "k", "epochs"])
    return {
        (arm, epochs): reached[arm.method.name, arm.k, epochs] - reached[EXACT, arm.k, epochs]
        for arm in ARMS
        for epochs, arms in SEEDS[sheet.scale].items()
        if arm in arms
    }


def each(sheet: Sheet) -> Iterator[Shown]:
    """Yield a figure, its numbers, and the verdict by the rule."""
    by = {value: gaps(sheet, value) for value in OUTCOMES}
    last = gaps(sheet, "test_accuracy")
    gap = by["final_accuracy"]
    late = means(sheet.runs, "final_accuracy", ["method", "k", "epochs"])
    places = list(gap)
    decided = {(arm, epochs): _decided(sheet.scale, arm, epochs, of) for (arm, epochs), of in last.items()}
    setting = sheet.described(network=True, length=False)
    known = {epochs: of for (arm, epochs), of in gap.items() if arm == PETRA and of.estimate}
    said = [f"{bounded(of)} after {epochs}" for epochs, of in known.items()]
    yield Sentence(
        f"PETRA − backpropagation at k = {PETRA.k} is {conjunction(said)} epochs, in points (scale “{sheet.scale}”)."
        if said
        else f"PETRA and backpropagation have not both been trained yet (scale “{sheet.scale}”).",
        known=bool(said),
    )
    runs = sheet.done[sheet.done["k"] == PETRA.k]
    yield facets.facet(
        runs,
        [facets.line("interval", gaps=True), facets.dots(apart=0.08), facets.cut_to(runs, "final_accuracy")],
        key=f"length-{sheet.key}",
        caption=f"Accuracy over the last epochs against the length of the training, k = {PETRA.k} ({setting}). Dot: a "
        "run; line: mean; band: 95 % interval; a method has a point only where it was run. Right: the difference to "
        "backpropagation at the same k; shaded: the margin of the verdicts.",
        x="epochs",
        y="final_accuracy",
        height=3.6,
        beside=[
            facets.differences(
                {
                    arm.title: {epochs: gap[of, epochs].estimate for of, epochs in places if of == arm}
                    for arm in dict.fromkeys(arm for arm, _ in places)
                },
                {arm.title: plots.COLOURS[arm.method] for arm in ARMS},
            )
        ],
        beside_label="points above backpropagation",
    )
    yield table(
        key=f"length-{sheet.key}",
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


def _decided(scale: str, arm: Arm, epochs: int, gap: Difference) -> str:
    """Apply the rule to a gap; return an empty text for gaps that the rule does not cover."""
    points, limit = gap.estimate, dict([AGAINST, FOR]).get(epochs)
    if (scale, arm) != ("small", PETRA) or limit is None or points is None:
        return ""
    low = -math.inf if points.low is None else points.low
    high = math.inf if points.high is None else points.high
    if epochs == AGAINST[0]:
        claim, holds, fails = "against", high < -limit, low > -limit
    else:
        claim, holds, fails = "for", max(-low, high) <= limit, high < -limit or low > limit
    return f"after {epochs}: {claim if holds else f'not {claim}' if fails else 'cannot tell'}"


EXHIBIT = Exhibit("length", "Training length: does the gap close?", INTRODUCTION, each)
