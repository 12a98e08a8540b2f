"""Figure 6: gradient quality over training, stage by stage.

The learning rate decides how far the weights move within a delay, and it changes over training: linear from 0, then
constant, then dropped. So the same stage has gradients of all qualities in one run, and Figure 5's means over the run
say nothing of when. Records made before single micro-batches were kept have one point an epoch and are drawn so.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from math import isnan

from reproduce.exhibits import gradients
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.exhibits.gradients import CLOSENESS, DELAYED, KINDS_NOTE, LOOKS, MEASURES, METHOD
from reproduce.records.frames import Frame, Sheet
from reproduce.show import facets
from reproduce.show.compare import CHANCE, judge, measured
from reproduce.show.content import Figure, text
from reproduce.show.facets import facet
from reproduce.show.statements import Outcome
from reproduce.show.statistics import Judgement
from reproduce.show.tables import Field, entry, number, table, words

INTRODUCTION = (
    "The same gradients and measures as in Figure 5, over training: a panel for each stage and measure. Where records "
    "hold the micro-batches one by one, a point is the mean over an equal part of the training; else over an epoch. "
    "The statement that PETRA's gradient is the closer one is checked for each part of the training with means over "
    "all stages below the head. The paper's curves are not known to us."
)
POINTS = 24  # of a curve, at most
ROWS = 6  # of a study in the table, at most
PANELS = 10  # stages in a figure, at most
FEWEST = 3  # micro-batches in a part of the training: single ones differ much
PLACE = ("study", "begin", "end")


def each(sheet: Sheet) -> Iterator[Shown]:
    """A figure a study, and the paper's statement over training."""
    lines = gradients.comparisons(sheet, single=True)
    if lines.empty:
        return
    epochs = sheet.example.epochs
    fine, parts = (gradients.profiles(in_parts(lines, epochs, most), "begin", "end") for most in (POINTS, ROWS))
    extents, seeds = gradients.extents(sheet, parts), measured(parts, "value", PLACE)
    courses = [_course(own) for _, own in parts.groupby("study", sort=False)]
    yield Sentence(courses[0])
    for study, curves in fine.groupby("study", sort=False):
        yield _figure(sheet, str(study), curves, extents[str(study)])
    of = measured(gradients.over_stages(parts), "value", [*PLACE, "pair", "measure"])
    judged = judge(measured(gradients.over_stages(gradients.gains(parts)), "value", [*PLACE, "measure"]))

    def fields(measure: str) -> Iterator[Field]:
        yield from (gradients.mean_field(of, pair, measure) for pair in (METHOD, DELAYED))
        if measure in CLOSENESS:
            yield gradients.claim_field("PETRA closer by", judged, measure, MEASURES[measure])

    yield table(
        key=f"figure6-{sheet.key}",
        caption=f"Gradient quality over training (scale “{sheet.scale}”), means over the stages below the head: mean "
        "over the seeds ± half the 95 % interval.",
        rows=[part for study in extents for part in sorted(seeds) if part[0] == study],
        fields=[
            words("study", lambda part: f"{part[0]}: {extents[part[0]]}"),
            entry("epochs", lambda part: text(f"{part[1]:.3g} to {part[2]:.3g}", sort=part[1])),
            number("seeds", lambda part: len(seeds[part].values)),
            *(field for measure in MEASURES for field in fields(measure)),
        ],
        notes=(
            "e2e: the end-to-end gradient. PETRA closer by: the paired difference as in Figure 5, positive where "
            "PETRA's gradient is closer to the end-to-end one than the delayed gradient. "
            f"{CHANCE}: does not survive Holm's correction for all {len(judged)} comparisons of the table.",
        ),
        grouped=True,
    )
    details = f" ({_tally(judged.values())}). {' '.join(courses)}"
    yield gradients.finding("Figure 6", sheet, judged.values(), "part by part of the training:", details)


def in_parts(lines: Frame, epochs: int, most: int) -> Frame:
    """The lines with the equal part of the training in which they are: columns `begin` and `end`, epochs.

    No part is shorter than an epoch, unless every record of the study has its micro-batches one by one; then none is so
    short that fewer than `FEWEST` of them are in it.

    Args:
        lines: of `gradients.comparisons`, single micro-batches where records have them.
        epochs: of the training.
        most: parts of a study, at most.

    """
    single = lines.groupby("study")["weight"].max() == 1
    probes = lines.groupby(["study", "cell", "epoch"])["point"].nunique().groupby("study").max()
    parts = lines["study"].map((probes * epochs // FEWEST).where(single, epochs).clip(1, most))
    number = (lines["point"] * parts / epochs).astype(int)
    return lines.assign(begin=number * epochs / parts, end=(number + 1) * epochs / parts)


def _tally(judgements: Collection[Judgement]) -> str:
    """How often which claim was made, and how often it survives."""
    made = Counter(gradients.claim(judgement) for judgement in judgements)
    surviving = Counter(gradients.claim(judgement) for judgement in judgements if judgement.survives)
    said = {outcome: f", {surviving[outcome]} of them after Holm's correction" for outcome in made}
    said[Outcome.CANNOT_TELL] = ""
    return "; ".join(f"{outcome.value} {made[outcome]}{said[outcome]}" for outcome in Outcome if made[outcome])


def _course(values: Frame) -> str:
    """From where to where the cosine goes at the stem, in words, of one study."""
    stem = values[(values["stage"] == 0) & (values["measure"] == "cosine")]
    means = stem[stem["pair"] == METHOD].groupby("end")["value"].mean()
    first, last = ("not defined" if isnan(mean) else f"{mean:.2f}" for mean in means.iloc[[0, -1]])
    course = f"{LOOKS[METHOD].label} from {first} to {last} at epoch {means.index[-1]:g}"
    return f"{values['study'].iloc[0]}: cosine at the stem of {course}."


def _figure(sheet: Sheet, study: str, values: Frame, extent: str) -> Figure:
    stages = _chosen(values["stage"].nunique())
    shown = values[values["stage"].isin(stages)].sort_values("stage", kind="stable")
    epochs, length = sheet.example.epochs, (values["end"] - values["begin"]).iloc[0]
    title = f"Gradient quality over training: {study}, scale “{sheet.scale}”"
    return facet(
        shown.assign(
            epoch=(shown["begin"] + shown["end"]) / 2,
            title=shown["measure"].map(MEASURES),
            panel=shown["stage"].astype(str) + ", " + shown["kind"],
        ),
        [facets.line("range", width=1.2, marked=epochs / length <= ROWS)],
        key=f"figure6-{sheet.key}-{re.sub('[^a-z0-9]+', '-', study.lower())}",
        title=title,
        caption=f"{title} ({extent}). Panels: stage and its kind. Line: mean over the seeds; band: their range; "
        f"points: means over {_epochs(length)}. {KINDS_NOTE}",
        x="epoch",
        y="value",
        hue="pair",
        looks=LOOKS,
        row="title",
        col="panel",
        titles=lambda _, panel: str(panel),
        margins=str,
        xlabel="epoch",
        ticks=sorted({0, epochs // 3, 2 * epochs // 3, epochs}),
        share=(True, "row"),
        height=1.5,
        finish=lambda axes: axes.set_xlim(0, epochs),
    )


def _epochs(length: float) -> str:
    """In words: an epoch, 0.33 epochs, 12 epochs."""
    return "an epoch" if length == 1 else f"{length:.2g} epochs"


def _chosen(count: int) -> Sequence[int]:
    """The stages to draw: all, or equally many apart with both ends."""
    if count <= PANELS:
        return range(count)
    return sorted({round(place * (count - 1) / (PANELS - 1)) for place in range(PANELS)})


EXHIBIT = Exhibit("figure6", "Figure 6: gradient quality over training", INTRODUCTION, each)
