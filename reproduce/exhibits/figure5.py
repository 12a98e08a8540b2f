"""Figure 5: gradient quality per stage, PETRA's gradient compared with the delayed and the end-to-end one.

The three curves of cosines look alike. The question is whether one is above another, and that difference is smaller
than the spread of the seeds. Therefore it is also drawn run by run and judged stage by stage. Both gradients come from
the same run, so the difference is taken within it. There is no margin of equivalence: the claim is that the interval of
the difference lies above 0.
"""

from collections.abc import Iterator, Sequence

from pandas import DataFrame, concat

from petra_core import methods
from reproduce.exhibits._exhibit import Shown, declare, result, text_of
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import SeedSamples, means, measured_samples
from reproduce.presentation.content import Entry, none
from reproduce.presentation.tables import Field, entry, estimate_column, number, table, words
from reproduce.records import gradients
from reproduce.records.frames import RunSet
from reproduce.records.gradients import BETWEEN, CLOSENESS, DELAYED, METHOD
from reproduce.text import conjunction, count

LOOKS = {
    METHOD: facets.Look("PETRA and end-to-end", plots.COLOURS[methods.PETRA]),
    DELAYED: facets.Look("delayed and end-to-end", plots.COLOURS[methods.DELAYED_GRADIENTS], (4, 1.5)),
    BETWEEN: facets.Look("PETRA and delayed", plots.COLOURS[methods.BACKPROPAGATION], (1, 1)),
}
MEASURES = {"cosine": "cosine similarity", "norm_ratio": "norm ratio", "relative_error": "relative error"}
KINDS = {
    "K": "keeps its input",
    "R": "reversible, F at a reconstructed input",
    "E": "reversible, F at an exact input",
}
KINDS_NOTE = "Kinds of stages: " + "; ".join(f"{letter}, {what}" for letter, what in KINDS.items()) + "."
CLOSER = text_of("figure5", "closer")
MARKS = {m: facets.Look(MEASURES[m], plots.INK, None, marker) for m, marker in zip(CLOSENESS, "o^", strict=True)}
PLACE = ["study", "stage", "kind"]


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the curves and all numbers, with the paper's statement tested against them."""
    values = gradients.profiles(gradients.comparisons(run_set))
    if values["value"].isna().all():
        return
    gains = gradients.gains(values)
    average, gain = (gradients.over_stages(f).assign(stage="mean", kind="") for f in (values, gains))
    stages, overall = (measured_samples(frame, [*PLACE, "measure"]) for frame in (gains, gain))
    seeds_of, rows = extents(run_set, values), concat([values, average], ignore_index=True)

    def closer(study: str, measure: str) -> str:
        """Return at how many stages PETRA's gradient is the closer one: "9 of 9 stages"."""
        known = [gain.estimate for (at, *_, by), gain in stages.items() if (at, by) == (study, measure)]
        gained = [estimate.mean > 0 for estimate in known if estimate]
        return f"{sum(gained)} of {len(gained)} stages"

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
        caption=text_of("figure5", "figure", run_set=run_set, kinds=KINDS_NOTE),
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


# --- for Figure 6, too


def count_reconstructing(kinds: str) -> str:
    """State how many stages of these kinds apply the residual function to a reconstructed input."""
    amount = kinds.count("R")
    return f"{amount} of {len(kinds)} stages {'computes' if amount == 1 else 'compute'} with a reconstructed input"


def extents(run_set: RunSet, values: DataFrame) -> dict[str, str]:
    """Return the number of seeds with values by study: "3 seeds", or "2 seeds; seed 2: 1 of 3 epochs"."""
    seeds = values.groupby("study", sort=False)["seed"].nunique()
    planned = means(run_set.runs, "seed", ["network", "k"])
    unfinished = {f"{network}, k = {k}": sample.unfinished for (network, k), sample in planned.items()}
    return {
        str(study): "; ".join(filter(None, (count(n, "seed"), unfinished[str(study)]))) for study, n in seeds.items()
    }


def quality(values: DataFrame, by: Sequence[str], gains: SeedSamples) -> list[Field]:
    """Return columns for rows that are places `by`: the quality of both gradients, and their difference (`gains`)."""
    means_of, seeds = measured_samples(values, [*by, "pair", "measure"]), measured_samples(values, by)

    def mean(name: str, pair: str, measure: str) -> Field:
        hint = LOOKS[pair].label
        return estimate_column(
            name, lambda place: means_of[*place, pair, measure].estimate, group=MEASURES[measure], hint=hint
        )

    def closer(measure: str) -> Field:
        return estimate_column(
            "PETRA closer by", lambda place: gains[*place, measure].estimate, 4, group=MEASURES[measure], sign=True
        )

    fields = [entry("seeds", lambda place: Entry(str(n := len(seeds[place].values)), n))]
    for measure in MEASURES:
        fields += [mean("PETRA/e2e", METHOD, measure), mean("delayed/e2e", DELAYED, measure)]
        fields += [closer(measure)] * (measure in CLOSENESS)
    return fields


EXHIBIT = declare("figure5", each)
