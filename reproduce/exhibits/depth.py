"""Beyond the paper: reconstruction error and accuracy against depth and delay, on a chain of constant width.

In a RevNet a reconstruction error accumulates only between two stages that keep their input, over at most 5 blocks. On
the chain only the head stops it. The exhibit separates methods that lose accuracy from runs that are broken.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pandas import DataFrame

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.depth import COMPARED
from reproduce.presentation import facets
from reproduce.presentation.compare import Difference, SeedSample, means, measured_samples, summarize
from reproduce.presentation.content import Finding, in_prose, short_title
from reproduce.presentation.facets import RECONSTRUCTION_LOOKS as LOOKS
from reproduce.presentation.tables import (
    BOTTOM,
    RECONSTRUCTION,
    Field,
    error,
    judged_columns,
    mean,
    number,
    table,
    words,
)
from reproduce.records.broken import RULE
from reproduce.records.frames import RunSet, over_training
from reproduce.text import conjunction

#: The two methods whose difference isolates each cause.
STEPS = {"reconstruction": (methods.PETRA, methods.DSP), "delay": (methods.DSP, methods.BACKPROPAGATION)}
PAIRS = {step: " − ".join(map(short_title, pair)) for step, pair in STEPS.items()}
EXACT = methods.BACKPROPAGATION
BEHIND = 5.0  # in points
INTRODUCTION = (
    "Chains of equal reversible blocks: J stages, of which all but stem and head reconstruct their inputs one from the "
    "other, with a staleness of 2(J-1) micro-batches at the bottom. PETRA − DSP, which has its delays and keeps its "
    f"inputs, is what reconstruction costs; DSP − backpropagation is what delay costs. {RULE}"
)
Place = tuple[int, int]  # (k, J)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield accuracy against depth, the differences between methods, broken runs, and reconstruction errors."""
    accuracy = means(run_set.runs.assign(J=_stages), "test_accuracy", ["k", "J", "method"])
    places = sorted({place[:2] for place in accuracy})
    steps = {(*p, step): [accuracy[*p, m.name] for m in pair] for p in places for step, pair in STEPS.items()}
    pairs = {place: _sound(first, second) for place, (first, second) in steps.items()}
    by_step = {place: pair for place, pair in pairs.items() if pair is not None}
    bottom = over_training(run_set.lines()).assign(J=_stages)
    bottom = bottom[(bottom["stage"] == BOTTOM) & bottom["measure"].isin(list(LOOKS))]
    errors = measured_samples(bottom, "value", ["k", "J", "measure"])
    setting = run_set.describe()

    def accuracy_column(method: Method) -> Field:
        return mean(short_title(method), lambda place: accuracy[*place, method.name], 1, group="accuracy, %")

    def step(name: str) -> Field:
        return judged_columns(
            "difference", lambda place: by_step.get((*place, name), "both broken"), group=f"{name}: {PAIRS[name]}"
        )

    def inexact(measure: str) -> Field:
        group = "error of the input reconstructed at the bottom"
        return error(LOOKS[measure].label, lambda place: errors[*place, measure], group=group)

    def broken_runs(place: Place) -> str:
        broken = {short_title(m): Counter(accuracy[*place, m.name].broken.values()) for m in COMPARED}
        return "; ".join(f"{name}: {n} {why}" for name, reasons in broken.items() for why, n in reasons.items())

    k, last = places[0][0], places[-1][1]
    deepest = {in_prose(m): accuracy[k, last, m.name] for m in COMPARED}
    reach = [
        f"{estimate.mean:.1f} % with {name} (seeds: {sample.seeds})"
        for name, sample in deepest.items()
        if (estimate := sample.estimate)
    ]
    lost = [f"{name}: {sample.summary}" for name, sample in deepest.items() if sample.failures and not sample.estimate]
    failed = f" ({'; '.join(lost)})" * bool(lost)
    yield Sentence(
        f"{run_set.after.capitalize()} a chain of {last} stages reaches {conjunction(reach)} at k = {k}{failed}."
        if reach
        else f"No run on a chain of {last} stages has an accuracy yet at k = {k}{failed}.",
        known=any(s.values for s in deepest.values()),
    )
    yield facets.facet(
        run_set.done.assign(J=_stages),
        [facets.line(), facets.dots(apart=0.012, broken="broken")],
        key=f"depth-{run_set.key}-accuracy",
        caption=f"Accuracy against depth ({setting}). Line: mean over the seeds; dot: a run; cross: a broken run; one "
        "whose loss was not finite has no accuracy, and no mark.",
        x="J",
        y="test_accuracy",
        panels=facets.Panels(col="k", height=2.9),
    )
    yield table(
        key=f"depth-{run_set.key}",
        caption=f"Accuracy, differences in points, and errors against depth ({setting}).",
        rows=places,
        fields=[
            words("k", lambda place: f"k = {place[0]}"),
            number("J", lambda place: place[1]),
            *map(accuracy_column, COMPARED),
            *map(step, STEPS),
            words("broken runs", broken_runs),
            *map(inexact, LOOKS),
        ],
        notes=[RECONSTRUCTION],
        grouped=True,
    )

    def name_place(method: Method, k: int, stages: int) -> str:
        return f"{short_title(method)} at J = {stages} with k = {k}"

    gaps = {
        (m, *place): accuracy[*place, m.name] - accuracy[*place, EXACT.name]
        for m in COMPARED
        for place in places
        if m is not EXACT
    }
    behind = [
        name_place(*case)
        for case, difference in gaps.items()
        if (gap := difference.estimate) and gap.mean < -BEHIND and gap.high is not None and gap.high < 0
    ]
    wrecks = [
        f"{name_place(m, k, stages)} ({len(broken)} of {len(accuracy[k, stages, m.name].states)})"
        for m in COMPARED
        for k, stages in places
        if (broken := accuracy[k, stages, m.name].broken)
    ]
    yield Finding(
        f"Depth and delay: scale “{run_set.scale}”. More than {BEHIND:g} points behind backpropagation, with an "
        f"interval that excludes 0: {'; '.join(behind) or 'none'}. Broken runs: {'; '.join(wrecks) or 'none'}."
    )
    costs = {name: summarize(pair for place, pair in by_step.items() if place[-1] == name) for name in STEPS}
    listed = "; ".join(f"{name} ({PAIRS[name]}), {cost or 'nothing to compare yet'}" for name, cost in costs.items())
    yield Finding(f"Depth and delay: scale “{run_set.scale}”. Cost in accuracy: {listed}.")
    yield facets.facet(
        bottom,
        [facets.line(), facets.dots()],
        key=f"depth-{run_set.key}-errors",
        caption=f"Relative error of the input that the lowest stage reconstructs ({setting}): mean over the "
        "micro-batches that were followed. Line: mean over the seeds; dot: a run.",
        x="J",
        y=facets.Axis("value", label="error at the bottom", log=True),
        hue="measure",
        looks=LOOKS,
        panels=facets.Panels(col="k", height=2.9),
    )


def _sound(sample: SeedSample, other: SeedSample) -> Difference | None:
    """Return the difference without seeds that are broken on both sides; None if all are.

    The agreement of two broken runs means nothing.
    """
    wrecks = sample.broken.keys() & other.broken.keys()
    difference = sample.without(wrecks) - other.without(wrecks)
    return difference if difference.estimate or not wrecks else None


def _stages(frame: DataFrame) -> Any:
    """Return J of the chains of a frame."""
    return frame["model"].str.removeprefix("chain").astype(int) + 2


EXHIBIT = Exhibit("depth", "Depth and delay: how far can inputs be reconstructed?", INTRODUCTION, each)
