"""Beyond the paper: reconstruction error and accuracy against depth and delay, on a chain of constant width.

In a RevNet a reconstruction error lives only between two stages that keep their input, at most 5 blocks. On the chain
nothing but the head stops it: with n blocks there are J = n + 2 stages, a run of n inversions, and a delay of 2(J - 1)
ticks at the bottom. DSP has the same delays and keeps its inputs, backpropagation has neither: what separates PETRA
from DSP is reconstruction, what separates DSP from backpropagation is delay.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.depth import COMPARED
from reproduce.records import broken
from reproduce.records.frames import Sheet, over_training
from reproduce.show import facets, plots
from reproduce.show.compare import Sample, Samples, counted, family_note, judge, means, measured
from reproduce.show.content import Column, Entry, Finding, Tone, missing, short_title, some, text, two_digits
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.content import number as number_entry
from reproduce.show.facets import Look, facet
from reproduce.show.statistics import MARGIN_POINTS, Judgement, Verdict
from reproduce.show.tables import Field, entry, error, judged_entries, mean_entry, number, table, words
from reproduce.words import conjunction

#: What a difference between two of them is due to.
STEPS = {"reconstruction": (methods.PETRA, methods.DSP), "delay": (methods.DSP, methods.BACKPROPAGATION)}
EXACT = methods.BACKPROPAGATION
BREAK_POINTS = 5.0
BOTTOM = 1  # the lowest stage that reconstructs its input
INPUT, BFLOAT16, FLOAT32 = "training/input", "rounding_bfloat16/input", "rounding/input"
LOOKS = {
    INPUT: Look("training (newer weights)", plots.COLOURS[methods.PETRA]),
    BFLOAT16: Look("rounding, bfloat16 streams", plots.COLOURS[methods.DSP], (4, 1.5)),
    FLOAT32: Look("rounding, float32", plots.COLOURS[methods.BACKPROPAGATION], (1, 1)),
}
INTRODUCTION = (
    "Chains of equal reversible blocks: J stages, of which all but stem and head reconstruct their inputs one from the "
    "other, with a delay of 2(J-1) ticks at the bottom. DSP (delayed gradients with checkpointing) has PETRA's delays "
    "and keeps its inputs, backpropagation has neither delays nor reconstruction. So PETRA less DSP is what "
    f"reconstruction costs, and DSP less backpropagation is what delay costs. {broken.RULE} A method breaks at a depth "
    f"if one of its runs is broken, or if its accuracy is more than {BREAK_POINTS:g} points below that of "
    "backpropagation with an interval that excludes 0."
)
PANELS: dict[str, Any] = {"col": "k", "titles": lambda _, k: f"k = {k}", "xlog": True, "height": 2.9}
Place = tuple[int, int]  # k, J


def each(sheet: Sheet) -> Iterator[Shown]:
    """Accuracy against depth, what separates the methods and what breaks; then the errors."""
    accuracy = means(sheet.runs.assign(J=_stages), "test_accuracy", ["k", "J", "method"])
    ks, depths, _ = (sorted(set(axis)) for axis in zip(*accuracy, strict=True))
    places = [(k, stages) for k in ks for stages in depths]
    breakings = {p: {m: breaking(accuracy[*p, m.name], accuracy[*p, EXACT.name]) for m in COMPARED} for p in places}
    steps = {(*p, step): [accuracy[*p, m.name] for m in pair] for p in places for step, pair in STEPS.items()}
    # That two wrecks agree says nothing.
    wrecks = {place for place, pair in steps.items() if all(sample.broken for sample in pair)}
    less = judge({place: Sample() if place in wrecks else of - other for place, (of, other) in steps.items()})
    deepest = {m: accuracy[ks[0], depths[-1], m.name].estimate for m in COMPARED}
    said = [f"{short_title(m)} {f'{found.mean:.1f} %' if found else 'no run'}" for m, found in deepest.items()]
    yield Sentence(f"With J = {depths[-1]} and k = {ks[0]}: {', '.join(said)}.")
    breaks = " ".join(_breaks(breakings, k, depths) for k in ks)
    setting = sheet.described()

    def late(place: Place) -> Entry:
        k, stages = place
        return number_entry(2 * (stages - 1) / k, 1 if k > 1 else 0, tone=Tone.PLAIN)

    def reached(method: Method) -> Field:
        def shown(place: Place) -> Entry:
            tone = Tone.ALERT if breakings[place][method].reason else Tone.OURS
            return mean_entry(accuracy[*place, method.name], 1, tone=tone)

        return entry(short_title(method), shown, group="accuracy, %")

    def step(name: str) -> Field:
        def shown(place: Place) -> list[Entry]:
            of, other = steps[*place, name]
            if (*place, name) in wrecks and (points := (of - other).estimate):
                return [estimate_entry(points, 2, sign=True), missing("both broken")]
            return judged_entries(less[*place, name])

        group = f"{name}: {_pair(name)}"
        return Field([Column("difference", group=group), Column("verdict", numeric=False, group=group)], shown)

    if not sheet.done.empty:
        yield facet(
            sheet.done.assign(J=_stages),
            [facets.line(), facets.dots(apart=0.012, broken="broken")],
            key=f"depth-{sheet.key}-accuracy",
            title=f"Accuracy against depth, scale “{sheet.scale}”",
            caption=f"Accuracy against depth ({setting}). Line: mean over the seeds; dot: a run; cross: a broken run. "
            "One whose loss was not finite has no accuracy, and no mark.",
            y="test_accuracy",
            ylabel="test accuracy, %",
            x="J",
            xlabel="stages J",
            ticks=depths,
            **PANELS,
        )
    yield table(
        key=f"depth-{sheet.key}",
        caption=f"Accuracy against depth ({setting}): mean over the seeds ± half the 95 % interval (number of seeds).",
        rows=places,
        fields=[
            words("k", lambda place: f"k = {place[0]}"),
            number("J", lambda place: place[1]),
            number("delay at the bottom, updates", late),
            *map(reached, COMPARED),
            *map(step, STEPS),
            entry("breaks", lambda place: _breaks_entry(breakings[place]), numeric=False),
        ],
        notes=(
            "Differences in points of accuracy, paired over the seeds that both have finished.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    yield Finding(f"Depth and delay: scale “{sheet.scale}”. {breaks}")
    decided = any(judgement.verdict is not Verdict.CANNOT_TELL for judgement in less.values())
    yield Finding(
        f"Depth and delay: scale “{sheet.scale}”, what it costs in accuracy (margin {MARGIN_POINTS} points). "
        + " ".join(_cost(name, {(k, stages): less[k, stages, name] for k, stages in places}) for name in STEPS),
        Tone.PLAIN if decided else Tone.MISSING,
    )
    yield from _errors(sheet, ks, depths)


def _stages(frame: Any) -> Any:
    """J of the chains of a frame."""
    return frame["model"].str.removeprefix("chain").astype(int) + 2


# --- what separates the methods, and what breaks


def _pair(step: str) -> str:
    return " less ".join(short_title(method) for method in STEPS[step])


def _cost(step: str, judged: Mapping[Place, Judgement]) -> str:
    """The judgements of a step in words."""
    differ = {place: j.difference for place, j in judged.items() if j.verdict is Verdict.DIFFER}
    worse = [f"J = {stages} with k = {k}" for (k, stages), points in differ.items() if points and points.mean < 0]
    at = f"; worse at {', '.join(worse)}" if worse else ""
    return f"{step.capitalize()} ({_pair(step)}): {counted(judged.values()) or 'nothing to compare yet'}{at}."


class Breaking(NamedTuple):
    """Why a method breaks, or else why that cannot be told; both empty if it does not break."""

    reason: str
    unclear: str = ""


def breaking(own: Sample, exact: Sample) -> Breaking:
    """Whether a method breaks at a place, beside backpropagation there."""
    below = (own - exact).estimate
    if own.broken:
        return Breaking(some([f"seed {seed}: {why}" for seed, why in own.broken.items()]))
    if below is not None and below.mean < -BREAK_POINTS:
        if below.high is not None and below.high < 0:
            return Breaking(f"{-below.mean:.1f} points below backpropagation")
        return Breaking("", "far below backpropagation, but the interval contains 0, or there is none")
    return Breaking("", "" if own.ended else "not all runs have ended")


def _breaks(breakings: Mapping[Place, Mapping[Method, Breaking]], k: int, depths: Sequence[int]) -> str:
    """At which J which method breaks, for one k."""
    said = []
    for method in COMPARED:
        at = ", ".join(str(stages) for stages in depths if breakings[k, stages][method].reason)
        unclear = ", ".join(str(stages) for stages in depths if breakings[k, stages][method].unclear)
        breaks = f"breaks at J = {at}" if at else "is not seen to break"
        said.append(f"{short_title(method)} {breaks}" + (f", cannot tell at J = {unclear}" if unclear else ""))
    return f"k = {k}, of J = {', '.join(map(str, depths))}: {'; '.join(said)}."


def _breaks_entry(by_method: Mapping[Method, Breaking]) -> Entry:
    reasons = {short_title(method): found.reason for method, found in by_method.items() if found.reason}
    unclear = {short_title(method): found.unclear for method, found in by_method.items() if found.unclear}
    hint = "; ".join(f"{name} ({why})" for name, why in (reasons or unclear).items())
    if reasons:
        return text(", ".join(reasons), tone=Tone.ALERT, hint=hint)
    return missing(f"cannot tell of {conjunction(list(unclear))}", hint) if unclear else text("none")


# --- errors


def _errors(sheet: Sheet, ks: Sequence[int], depths: Sequence[int]) -> Iterator[Shown]:
    """Errors of reconstructed inputs at the bottom against depth, and along each chain."""
    errors = over_training(sheet.lines()).assign(J=_stages, inversions=lambda frame: frame["J"] - 1 - frame["stage"])
    bottom = errors[errors["stage"] == BOTTOM]
    samples = measured(bottom, "value", ["k", "J", "measure"])
    setting, growth = sheet.described(), " ".join(filter(None, (_growth(samples, k, depths) for k in ks)))
    average = "mean over the micro-batches that were followed"
    if growth:
        yield facet(
            bottom[bottom["measure"].isin(list(LOOKS))],
            [facets.line(), facets.dots()],
            key=f"depth-{sheet.key}-errors",
            title=f"Errors of reconstructed inputs at the bottom, scale “{sheet.scale}”",
            caption=f"Relative error of the input that the lowest stage reconstructs ({setting}), {average}. "
            "Line: mean over the seeds; dot: a run.",
            y="value",
            ylabel="error at the bottom",
            hue="measure",
            looks=LOOKS,
            x="J",
            xlabel="stages J",
            ticks=depths,
            ylog=True,
            **PANELS,
        )
        yield facet(
            errors[(errors["measure"] == INPUT) & (errors["stage"] >= BOTTOM) & (errors["inversions"] > 0)],
            [facets.line(width=1.2)],
            key=f"depth-{sheet.key}-chains",
            title=f"Errors of reconstructed inputs along each chain, scale “{sheet.scale}”",
            caption=f"Relative error of the input that a stage reconstructs in training ({setting}), {average}, then "
            "over the seeds.",
            y="value",
            ylabel="error of a stage, training",
            hue="J",
            looks=facets.rising(depths, "J = {:g}"),
            x="inversions",
            xlabel="inversions since the head",
            ticks=(1, 2, 4, 8, 16, 32),
            ylog=True,
            **PANELS,
        )
        yield Finding(
            f"Depth and delay: scale “{sheet.scale}”, relative error of the input that the lowest stage reconstructs. "
            + growth
        )
    yield table(
        key=f"depth-{sheet.key}-errors",
        caption=f"Relative error of the input that the lowest reversible stage reconstructs, under PETRA ({setting}): "
        f"{average}, then over the seeds ± half the 95 % interval.",
        rows=[(k, stages) for k in ks for stages in depths],
        fields=[
            words("k", lambda place: f"k = {place[0]}"),
            number("J", lambda place: place[1]),
            number("seeds", lambda place: len(samples[*place, INPUT].values)),
            error("rounding, float32", lambda place: samples[*place, FLOAT32], group="whole input"),
            error("rounding, bfloat16 streams", lambda place: samples[*place, BFLOAT16], group="whole input"),
            error("training", lambda place: samples[*place, INPUT], group="whole input"),
            error("training", lambda place: samples[*place, "training/x"], group="stream at which F is evaluated"),
        ],
        notes=(
            "Norm of reconstructed less true over that of the true, of a whole micro-batch. Rounding: the forward "
            "inverted with its own weights, in float32 and with streams of bfloat16, which the engine does not have. "
            "Training: the engine's own inversion, 2(J-2) ticks after the forward.",
        ),
        grouped=True,
    )


def _growth(samples: Samples, k: int, depths: Sequence[int]) -> str:
    """The error at the bottom from the least to the greatest depth; empty if it is not known."""
    known = {stages: found for stages in depths if (found := samples[k, stages, INPUT].estimate)}
    said = ", ".join(f"{relative(found.mean)} at J = {stages}" for stages, found in known.items())
    return f"k = {k}: {said}." if said else ""


def relative(error: float) -> str:
    """A relative error in percent, or as a multiple where percents become hard to read."""
    return f"{two_digits(100 * error)} %" if error < 10 else f"{error:,.0f} times the input"


EXHIBIT = Exhibit("depth", "Depth and delay: how far can inputs be reconstructed?", INTRODUCTION, each)
