"""Beyond the paper: accuracy against the length of the training.

The paper trains for 300 epochs and reports a small gap. Trainings of a few epochs have a large one. Does PETRA reach
a lower accuracy, or the same accuracy later? And is the cause delay or reconstruction?
"""

import math
from collections.abc import Iterator
from functools import partial

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Shown
from reproduce.exhibits.comparison import (
    Chart,
    Compared,
    Comparison,
    Headline,
    Place,
    change,
    mean_column,
    plain_change,
    setting,
)
from reproduce.grids.plans.length import AGAINST, FOR, PETRA, SEEDS, VARIANTS, Variant
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import CHOSEN, Difference
from reproduce.presentation.content import Finding
from reproduce.presentation.statistics import Estimate
from reproduce.presentation.tables import words
from reproduce.records.frames import AVERAGED, RunSet

INTRODUCTION = (
    "The same network is trained for several lengths, each with its whole schedule: the same warm-up in epochs, drops "
    "of the rate at the same fractions. Delayed gradients keep inputs and weights, so what they lose is lost to delay; "
    "with k = 4 gradients are fewer updates late. Accuracy and training loss are means over the last epochs, those "
    f"after the last drop, at most {AVERAGED}. “Best” is the paper's measure: the best epoch after the last drop, "
    "chosen by test accuracy. The rule at "
    f"“small”, for the last epoch: PETRA (k = 1) more than {AGAINST[1]:g} points below backpropagation after "
    f"{AGAINST[0]} epochs speaks against the paper's claim, within ± {FOR[1]:g} after {FOR[0]} for it, the whole "
    "interval each time. It was written down before these runs, but committed only after the first two pairs of "
    f"{AGAINST[0]} epochs, together with the increase from three seeds to six."
)
EXACT = methods.BACKPROPAGATION.name
VARIANTS_BY_PLACE = {(variant.method.name, variant.k): variant for variant in VARIANTS}


def gaps(run_set: RunSet, value: str) -> dict[tuple[Variant, int], Difference]:
    """Return the differences of a column to backpropagation at the same k, by variant and length."""
    compared = Compared(COMPARISON, run_set)
    differences = {(_variant(place), place[-1]): compared.difference(place, value) for place in _places(compared)}
    return {place: gap for place, gap in differences.items() if gap}


def _variant(place: Place) -> Variant:
    method, k, _ = place
    return VARIANTS_BY_PLACE[method, k]


def _places(compared: Compared) -> list[Place]:
    """Return the places of the table: every variant at each length for which it is planned."""
    lengths = SEEDS[compared.run_set.scale]
    return [
        (variant.method.name, variant.k, epochs)
        for variant in VARIANTS
        for epochs, variants in lengths.items()
        if variant in variants
    ]


def _differences(compared: Compared) -> list[facets.Layer]:
    """Draw the differences to backpropagation, a line for each variant."""
    by_variant: dict[str, dict[int, Estimate | None]] = {}
    for place in _places(compared):
        gap = compared.difference(place)
        by_variant.setdefault(_variant(place).title, {})[place[-1]] = gap.estimate if gap else None
    return [facets.differences(by_variant, {variant.title: plots.COLOURS[variant.method] for variant in VARIANTS})]


COMPARISON = Comparison(
    by=("method", "k", "epochs"),
    reference={"method": EXACT},
    value="final_accuracy",
    key="length-{run_set}",
    setting=partial(RunSet.describe, network=True, length=False),
    headline=Headline(
        known=f"PETRA − backpropagation at k = {PETRA.k} is {{differences}} epochs, in points (scale “{{scale}}”).",
        unknown="PETRA and backpropagation have not both been trained yet (scale “{scale}”).",
        each="{difference} after {epochs}",
        where={"method": PETRA.method.name, "k": PETRA.k},
    ),
    chart=Chart(
        caption=f"Accuracy over the last epochs against the length of the training, k = {PETRA.k} ({{setting}}). Dot: "
        "a run; line: mean; band: 95 % interval; a method has a point only where it was run. Right: the difference to "
        "backpropagation at the same k; shaded: the margin of the verdicts.",
        x="epochs",
        layers=[facets.line("interval", gaps=True), facets.dots(apart=0.08), facets.cut_to()],
        where={"k": PETRA.k},
        beside=_differences,
        beside_label="points above backpropagation",
        panels=facets.Panels(height=3.6),
    ),
    caption="Differences to backpropagation by the length of the training ({setting}).",
    rows=_places,
    columns=[
        lambda _: words("method", lambda place: _variant(place).title),
        setting("epochs", "epochs"),
        mean_column("accuracy, %"),
        mean_column("backpropagation, %", method=EXACT),
        change("points", group="accuracy, last epochs"),
        change("points", "best_test_accuracy", group=f"accuracy, best{CHOSEN}"),
        plain_change("difference", "final_loss", 4, group="training loss, last epochs"),
        lambda compared: words("the paper's claim", lambda place: _decide(compared, place)),
    ],
)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the comparison, and the verdict by the rule."""
    yield from COMPARISON(run_set)
    compared = Compared(COMPARISON, run_set)
    if by_rule := "; ".join(filter(None, (_decide(compared, place) for place in _places(compared)))):
        yield Finding(f"Training length: PETRA, k = {PETRA.k}, the paper's claim by the rule: {by_rule}.")


def _decide(compared: Compared, place: Place) -> str:
    """Apply the rule to the last epoch; return an empty text for places that the rule does not cover."""
    epochs, gap = place[-1], compared.difference(place, "test_accuracy")
    points, limit = gap.estimate if gap else None, dict([AGAINST, FOR]).get(epochs)
    if (compared.run_set.scale, _variant(place)) != ("small", PETRA) or limit is None or points is None:
        return ""
    low = -math.inf if points.low is None else points.low
    high = math.inf if points.high is None else points.high
    if epochs == AGAINST[0]:
        claim, holds, fails = "against", high < -limit, low > -limit
    else:
        claim, holds, fails = "for", max(-low, high) <= limit, high < -limit or low > limit
    return f"after {epochs}: {claim if holds else f'not {claim}' if fails else 'cannot tell'}"


EXHIBIT = Exhibit("length", "Training length: does the gap close?", INTRODUCTION, each)
