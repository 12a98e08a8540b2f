"""Share code between Figures 5 and 6: looks and texts of gradients, and columns that compare their closeness.

Both gradients come from the same run, so the difference is taken within it. There is no margin of equivalence: the
claim is that the interval of the difference lies above 0.
"""

from collections.abc import Sequence

from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits._exhibit import text_of
from reproduce.presentation.compare import SeedSamples, means, measured_samples
from reproduce.presentation.content import Entry
from reproduce.presentation.facets import METHOD_LOOKS, Look
from reproduce.presentation.tables import Field, entry, estimate_column
from reproduce.records.frames import RunSet
from reproduce.records.gradients import BETWEEN, CLOSENESS, DELAYED, METHOD
from reproduce.text import count

LOOKS = {
    METHOD: Look("PETRA and end-to-end", METHOD_LOOKS[methods.PETRA.name].colour),
    DELAYED: Look("delayed and end-to-end", METHOD_LOOKS[methods.DELAYED_GRADIENTS.name].colour, (4, 1.5)),
    BETWEEN: Look("PETRA and delayed", METHOD_LOOKS[methods.BACKPROPAGATION.name].colour, (1, 1)),
}
MEASURES = {"cosine": "cosine similarity", "norm_ratio": "norm ratio", "relative_error": "relative error"}
KINDS = {
    "K": "keeps its input",
    "R": "reversible, F at a reconstructed input",
    "E": "reversible, F at an exact input",
}
KINDS_NOTE = "Kinds of stages: " + "; ".join(f"{letter}, {what}" for letter, what in KINDS.items()) + "."
CLOSER = text_of("gradients", "closer")


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
    means_of, seeds = measured_samples(values, "value", [*by, "pair", "measure"]), measured_samples(values, "value", by)

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
