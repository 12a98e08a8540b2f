"""Figure 5: gradient quality per stage, PETRA's gradient compared with the delayed and the end-to-end one.

The three curves of cosines look alike. The question is whether one is above another, and that difference is smaller
than the spread of the seeds. Therefore it is also drawn run by run and judged stage by stage.
"""

from collections.abc import Iterator

from pandas import concat

from reproduce import published
from reproduce.exhibits._exhibit import Shown, declare, result, text_of
from reproduce.exhibits.gradients import CLOSER, KINDS_NOTE, LOOKS, MEASURES, extents, quality
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import SeedSamples, measured_samples
from reproduce.presentation.content import Entry, none
from reproduce.presentation.tables import number, table, words
from reproduce.records import gradients
from reproduce.records.frames import RunSet
from reproduce.records.gradients import CLOSENESS
from reproduce.text import conjunction, count

MARKS = {m: facets.Look(MEASURES[m], plots.INK, None, marker) for m, marker in zip(CLOSENESS, "o^", strict=True)}
PLACE = ["study", "stage", "kind"]


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the curves and all numbers, with the paper's statement tested against them."""
    values = gradients.profiles(gradients.comparisons(run_set))
    if values["value"].isna().all():
        return
    gains = gradients.gains(values)
    average, gain = (gradients.over_stages(f).assign(stage="mean", kind="") for f in (values, gains))
    stages, overall = (measured_samples(frame, "value", [*PLACE, "measure"]) for frame in (gains, gain))
    seeds_of, rows = extents(run_set, values), concat([values, average], ignore_index=True)

    def closer(study: str, measure: str) -> str:
        """Return at how many stages PETRA's gradient is the closer one: "9 of 9 stages"."""
        known = [gain.estimate for (at, *_, by), gain in stages.items() if (at, by) == (study, measure)]
        means = [estimate.mean for estimate in known if estimate]
        return f"{sum(mean > 0 for mean in means)} of {len(means)} stages"

    listed = [
        f"at {closer(study, 'cosine')} on {study} ({_reconstructing(run_set, study)})"
        for study in seeds_of
        if study.endswith("= 1") and closer(study, "cosine") != "0 of 0 stages"
    ]
    yield result(
        listed,
        f"By cosine PETRA's gradient is closer to the end-to-end gradient than the delayed one {conjunction(listed)}, "
        f"over {count(run_set.example.epochs, 'epoch')}.",
        "No cosine with k = 1 has been measured yet.",
    )
    curves = values.assign(panel=values["measure"].map(MEASURES), series=values["pair"], marks=False)
    yield facets.facet(
        concat(
            [curves, gains.assign(panel="PETRA closer by …", series=gains["measure"], marks=True)], ignore_index=True
        ),
        [
            facets.where(facets.line("range"), marks=False),
            facets.where(facets.dots(size=3.5, apart=-0.24, even=True), marks=True),
            facets.where(facets.zero, marks=True),
            facets.label_places("kind", shaded="K"),
        ],
        key=f"figure5-{run_set.key}",
        caption=text_of("figure5", "figure", run_set=run_set) + KINDS_NOTE,
        x="stage",
        y="value",
        hue="series",
        looks={**LOOKS, **MARKS},
        panels=facets.Panels(
            row="study",
            col="panel",
            margins=lambda study: str(study).replace(", ", "\n", 1),
            share=(False, False),
            height=2.3,
        ),
    )
    places = rows[PLACE].drop_duplicates().itertuples(index=False, name=None)
    yield table(
        key=f"figure5-{run_set.key}",
        caption=f"Gradient quality per stage (scale “{run_set.scale}”); last, the mean of the stages below the head.",
        rows=sorted(places, key=lambda place: list(seeds_of).index(place[0])),
        fields=[
            words("study", lambda place: f"{place[0]}: {seeds_of[place[0]]}", heading=True),
            number("stage", lambda place: Entry("mean", 1e3) if place[1] == "mean" else place[1]),
            words("kind", lambda place: place[2] or none("of all above")),
            *quality(rows, PLACE, SeedSamples({**stages, **overall})),
        ],
        notes=[f"{CLOSER} {KINDS_NOTE}"],
    )


def _reconstructing(run_set: RunSet, study: str) -> str:
    """State how many stages of a study's network apply the residual function to a reconstructed input."""
    kinds = gradients.kinds_of(run_set)[study.rpartition(", k")[0]]
    return f"{kinds.count('R')} of {len(kinds)} with a reconstructed input"


EXHIBIT = declare("figure5", each, quote=published.quote("figure5"))
