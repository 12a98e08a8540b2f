"""Beyond the paper: reconstruction error and accuracy against depth and delay, on a chain of constant width.

In a RevNet a reconstruction error lives only between two stages that keep their input, at most 5 blocks; on the chain
nothing but the head stops it. How far a method is behind is one thing, that a run is broken another: both are said.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.depth import COMPARED
from reproduce.records.broken import RULE
from reproduce.records.frames import Frame, Sheet, over_training
from reproduce.show import facets
from reproduce.show.compare import Sample, family_note, judge, means, measured, reported
from reproduce.show.content import Finding, Tone, short_title, two_digits
from reproduce.show.facets import RECONSTRUCTION_LOOKS as LOOKS
from reproduce.show.facets import facet
from reproduce.show.statistics import MARGIN_POINTS, Judgement, Verdict
from reproduce.show.tables import RECONSTRUCTION, Field, error, judged, mean, number, table, words
from reproduce.words import count

#: What a difference between two of them is due to.
STEPS = {"reconstruction": (methods.PETRA, methods.DSP), "delay": (methods.DSP, methods.BACKPROPAGATION)}
PAIRS = {step: " less ".join(map(short_title, pair)) for step, pair in STEPS.items()}
EXACT = methods.BACKPROPAGATION
BEHIND = 5.0  # points
BOTTOM = 1  # the lowest stage that reconstructs its input
TRAINING = "training/input"
INTRODUCTION = (
    "Chains of equal reversible blocks: J stages, of which all but stem and head reconstruct their inputs one from the "
    "other, with a delay of 2(J-1) ticks at the bottom. PETRA less DSP, which has its delays and keeps its inputs, is "
    f"what reconstruction costs; DSP less backpropagation is what delay costs. {RULE}"
)
Place = tuple[int, int]  # k, J


def each(sheet: Sheet) -> Iterator[Shown]:
    """Accuracy against depth, what separates the methods and what breaks; then the errors."""
    accuracy = means(sheet.runs.assign(J=_stages), "test_accuracy", ["k", "J", "method"])
    ks, depths, _ = (sorted(set(axis)) for axis in zip(*accuracy, strict=True))
    places = [(k, stages) for k in ks for stages in depths]
    steps = {(*p, step): [accuracy[*p, m.name] for m in pair] for p in places for step, pair in STEPS.items()}
    # That two wrecks agree says nothing.
    wrecks = {place for place, pair in steps.items() if all(sample.broken for sample in pair)}
    less = judge({place: Sample() if place in wrecks else of - other for place, (of, other) in steps.items()})
    bottom = over_training(sheet.lines()).assign(J=_stages)
    bottom = bottom[(bottom["stage"] == BOTTOM) & bottom["measure"].isin(list(LOOKS))]
    errors = measured(bottom, "value", ["k", "J", "measure"])
    setting, last = sheet.described(), depths[-1]
    panels: dict[str, Any] = {"x": "J", "xlabel": "stages J", "ticks": depths, "xlog": True, "height": 2.9, "col": "k"}
    panels["titles"] = lambda _, k: f"k = {k}"

    def where(holds: Callable[[Sample, Sample], bool]) -> str:
        """Of which methods it holds, of their accuracy and that of backpropagation, and at which depths."""
        said = [
            f"{short_title(method)} at J = {', '.join(at)} with k = {k}"
            for method in COMPARED
            for k in ks
            if (at := [str(J) for J in depths if holds(accuracy[k, J, method.name], accuracy[k, J, EXACT.name])])
        ]
        return "; ".join(said) or "none"

    def behind(own: Sample, exact: Sample) -> bool:
        gap = (own - exact).estimate
        return gap is not None and gap.mean < -BEHIND and gap.high is not None and gap.high < 0

    def reached(method: Method) -> Field:
        return mean(short_title(method), lambda place: accuracy[*place, method.name], 1, group="accuracy, %")

    def step(name: str) -> Field:
        def judgement(place: Place) -> Judgement | str:
            return "both broken" if (*place, name) in wrecks else less[*place, name]

        return judged("difference", judgement, group=f"{name}: {PAIRS[name]}")

    def inexact(measure: str) -> Field:
        group = "error of the input reconstructed at the bottom"
        return error(LOOKS[measure].label, lambda place: errors[*place, measure], group=group)

    def broken_runs(place: Place) -> str:
        found = {short_title(m): Counter(accuracy[*place, m.name].broken.values()) for m in COMPARED}
        return "; ".join(f"{name}: {n} {why}" for name, reasons in found.items() for why, n in reasons.items())

    deepest = {short_title(m): accuracy[ks[0], last, m.name].estimate for m in COMPARED}
    reach = [f"{name} {f'{found.mean:.1f} %' if found else 'no run'}" for name, found in deepest.items()]
    yield Sentence(f"With J = {last} and k = {ks[0]}: {', '.join(reach)}.")
    if not sheet.done.empty:
        yield facet(
            sheet.done.assign(J=_stages),
            [facets.line(), facets.dots(apart=0.012, broken="broken")],
            key=f"depth-{sheet.key}-accuracy",
            title=f"Accuracy against depth, scale “{sheet.scale}”",
            caption=f"Accuracy against depth ({setting}). Line: mean over the seeds; dot: a run; cross: a broken run; "
            "one whose loss was not finite has no accuracy, and no mark.",
            y="test_accuracy",
            ylabel="test accuracy, %",
            **panels,
        )
    yield table(
        key=f"depth-{sheet.key}",
        caption=f"Accuracy and errors against depth ({setting}): mean over the seeds ± half the 95 % interval (seeds).",
        rows=places,
        fields=[
            words("k", lambda place: f"k = {place[0]}"),
            number("J", lambda place: place[1]),
            *map(reached, COMPARED),
            *map(step, STEPS),
            words("broken runs", broken_runs),
            *map(inexact, LOOKS),
        ],
        notes=(
            "Differences in points of accuracy, paired over the seeds that both have finished.",
            family_note(less.values()),
            RECONSTRUCTION,
        ),
        grouped=True,
    )
    yield Finding(
        f"Depth and delay: scale “{sheet.scale}”. Broken: {where(lambda own, _: bool(own.broken))}. More than "
        f"{BEHIND:g} points behind backpropagation after {count(sheet.example.epochs, 'epoch')}, with an interval that "
        f"excludes 0: {where(behind)}."
    )
    costs = {name: reported(found for place, found in less.items() if place[-1] == name) for name in STEPS}
    yield Finding(
        f"Depth and delay: scale “{sheet.scale}”, what it costs in accuracy (margin {MARGIN_POINTS} points). "
        + " ".join(
            f"{name.capitalize()} ({PAIRS[name]}): {cost or 'nothing to compare yet'}." for name, cost in costs.items()
        ),
        Tone.PLAIN if any(found.verdict is not Verdict.CANNOT_TELL for found in less.values()) else Tone.MISSING,
    )
    if not bottom.empty:
        yield facet(
            bottom,
            [facets.line(), facets.dots()],
            key=f"depth-{sheet.key}-errors",
            title=f"Errors of reconstructed inputs at the bottom, scale “{sheet.scale}”",
            caption=f"Relative error of the input that the lowest stage reconstructs ({setting}): mean over the "
            "micro-batches that were followed. Line: mean over the seeds; dot: a run.",
            y="value",
            ylabel="error at the bottom",
            hue="measure",
            looks=LOOKS,
            ylog=True,
            **panels,
        )
        ends = {k: [errors[k, stages, TRAINING].estimate for stages in (depths[0], last)] for k in ks}
        grown = [
            f"{two_digits(least.mean)} to {two_digits(most.mean)} with k = {k}"
            for k, (least, most) in ends.items()
            if least and most
        ]
        yield Finding(
            f"Depth and delay: scale “{sheet.scale}”. Relative error of the input that the lowest stage reconstructs, "
            f"from J = {depths[0]} to J = {last}: {'; '.join(grown) or 'not known'}."
        )


def _stages(frame: Frame) -> Any:
    """J of the chains of a frame."""
    return frame["model"].str.removeprefix("chain").astype(int) + 2


EXHIBIT = Exhibit("depth", "Depth and delay: how far can inputs be reconstructed?", INTRODUCTION, each)
