"""Figure 5: gradient quality per stage, PETRA's gradient beside the delayed one and the end-to-end one.

Three curves of cosines look alike, and what is asked of them, whether one is above another, is a difference that is
smaller than what separates the seeds. So it is drawn too, run by run, and judged stage by stage.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from reproduce.exhibits import gradients
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.exhibits.gradients import CLOSENESS, KINDS, KINDS_NOTE, LOOKS, MEASURES
from reproduce.records.frames import Frame, Sheet, together
from reproduce.show import facets, plots, statements
from reproduce.show.compare import CHANCE, judge, measured
from reproduce.show.content import Figure, none, text
from reproduce.show.facets import Look, facet
from reproduce.show.statistics import Judgement
from reproduce.show.tables import number, table, words

INTRODUCTION = (
    "Three gradients of the same micro-batch at a stage: PETRA's own; the delayed one, exact for the whole network "
    "with each stage's weights as they were when the micro-batch went forward; and the end-to-end one, exact with the "
    "weights of the moment of that stage's backward. For each pair: the cosine, the ratio of the norms and the "
    "relative error (norm of the difference over that of the second), averaged over the stage's weight tensors, then "
    f"over all micro-batches of the run that were followed. Stated of the paper: {statements.of('figure5').quoted}. "
    "Its curves are not known to us."
)
STRUCTURE = (
    "What the structure means. A RevNet-18 has stages that keep their input (K): the stem, the three that halve the "
    "resolution, the head. Each hands its exact input down, so an error of reconstruction lives only between two of "
    "them; and as one of the two streams is handed down as a copy, the reversible stage just below (E) evaluates F at "
    "exactly the right place. That leaves stage 1 as the only one that evaluates F on a reconstructed input (R): in "
    "RevNet-18, PETRA's gradient differs from that of DSP, which keeps all inputs, by little else. The chain of 8 "
    "reversible blocks is shown beside it since there every inner stage but the last is of this kind."
)
MARKS = {m: Look(MEASURES[m], plots.INK, None, marker) for m, marker in zip(CLOSENESS, "o^", strict=True)}
PLACE = ("study", "stage", "kind")


def each(sheet: Sheet) -> Iterator[Shown]:
    """The curves, every number, and the paper's statement against it."""
    values = gradients.profiles(gradients.comparisons(sheet))
    if values.empty:
        return
    gains = gradients.gains(values)
    mean = gradients.over_stages(gains).assign(stage="mean", kind="")
    of = measured(values, "value", [*PLACE, "pair", "measure"])
    stages, overall = (judge(measured(frame, "value", [*PLACE, "measure"])) for frame in (gains, mean))
    extents, seeds = gradients.extents(sheet, values), measured(values, "value", ["study"])
    first, *_ = seeds
    yield Sentence(
        f"{first}: closer to the end-to-end gradient than the delayed one, by cosine, at "
        f"{_closer(first, stages, 'cosine')} stages."
    )
    yield _figure(sheet, values, gains)
    head = words("study", lambda row: f"{row[0]}: {extents[row[0]]}")
    stage = number("stage", lambda row: text("mean", sort=1e3) if row[1] == "mean" else row[1])
    kind = words("kind", lambda row: text(row[2], hint=KINDS[row[2]]) if row[2] else none("of all stages above"))
    yield table(
        key=f"figure5-{sheet.key}",
        caption=f"Gradient quality per stage (scale “{sheet.scale}”): mean over the seeds ± half the 95 % interval.",
        rows=gradients.places(values, PLACE),
        fields=[head, stage, kind, *(gradients.mean_field(of, pair, m) for m in MEASURES for pair in LOOKS)],
        notes=(
            f"e2e: the end-to-end gradient. {KINDS_NOTE}",
            *(f"{study}: {extent}." for study, extent in extents.items() if study not in seeds),
        ),
        grouped=True,
    )
    judged, stated = {**stages, **overall}, gradients.places(together(gains, mean), PLACE)
    yield table(
        key=f"figure5-statement-{sheet.key}",
        caption="By how much PETRA's gradient is closer to the end-to-end gradient than the delayed one "
        f"(scale “{sheet.scale}”): paired differences, mean over the seeds ± half the 95 % interval.",
        rows=[row for study in seeds for row in stated if row[0] == study],
        fields=[
            *(head, stage, kind, number("seeds", lambda row: len(seeds[row[0]].values))),
            *(gradients.claim_field("difference", judged, m, f"closer by {MEASURES[m]}") for m in CLOSENESS),
        ],
        notes=(
            "Difference by cosine: that of PETRA less that of the delayed gradient; by relative error: that of the "
            "delayed gradient less that of PETRA. Positive: PETRA is closer. Agree if the interval lies above 0, "
            f"disagree if below, else cannot tell. {CHANCE}: does not survive Holm's correction for all {len(stages)} "
            f"comparisons of stages, or all {len(overall)} of means.",
            "The head is not in it: its forward and backward are of one tick, and PETRA's gradient is the delayed one.",
        ),
        grouped=True,
    )
    details = " ".join(f"{study} ({extents[study]}): {_counted(study, stages, overall)}." for study in seeds)
    ours = "on average over the stages below the head,"
    yield gradients.finding("Figure 5", sheet, overall.values(), ours, f". {details}")


def _counted(study: str, stages: Mapping[Any, Judgement], overall: Mapping[Any, Judgement]) -> str:
    """By each measure of closeness the claim of the mean, and at how many stages PETRA is the closer one."""
    said = []
    for measure in CLOSENESS:
        mean = overall.get((study, "mean", "", measure))
        claim = gradients.claim_entry(mean).text if mean else "not defined"
        said.append(f"by {MEASURES[measure]} {claim}, PETRA the closer one at {_closer(study, stages, measure)} stages")
    return "; ".join(said)


def _closer(study: str, stages: Mapping[Any, Judgement], measure: str) -> str:
    """At how many of the stages of a study PETRA is the closer one: "9 of 9"."""
    own = [j.difference for (of, *_, name), j in stages.items() if (of, name) == (study, measure) and j.difference]
    return f"{sum(difference.mean > 0 for difference in own)} of {len(own)}"


def _figure(sheet: Sheet, values: Frame, gains: Frame) -> Figure:
    """A line of panels a study: the measures, and run by run how much closer PETRA is."""
    curves = values.assign(panel=values["measure"].map(MEASURES), shown=values["pair"], marks=False)
    title = f"Gradient quality per stage, scale “{sheet.scale}”"
    return facet(
        together(curves, gains.assign(panel="PETRA closer by …", shown=gains["measure"], marks=True)),
        [
            facets.only(facets.line("range"), marks=False),
            facets.only(facets.dots(size=3.5, apart=-0.24, even=True), marks=True),
            facets.only(facets.zero, marks=True),
            facets.labelled("kind", shaded="K"),
        ],
        key=f"figure5-{sheet.key}",
        title=title,
        caption=f"{title}. Line: mean over the seeds; band: their range. Right: how much closer PETRA's gradient is to "
        f"the end-to-end one than the delayed gradient, a mark for each seed. {KINDS_NOTE}",
        x="stage",
        y="value",
        hue="shown",
        looks={**LOOKS, **MARKS},
        row="study",
        col="panel",
        titles=lambda _, panel: str(panel),
        margins=lambda study: str(study).replace(", ", "\n", 1),
        share=(False, False),
        height=2.3,
    )


EXHIBIT = Exhibit("figure5", "Figure 5: gradient quality per stage", INTRODUCTION, each, lambda _: [STRUCTURE])
