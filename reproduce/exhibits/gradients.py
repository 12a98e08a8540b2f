"""Share code between Figures 5 and 6: looks and texts of gradients, and columns that compare their closeness.

Both gradients come from the same run, so the difference is taken within it. There is no margin of equivalence: the
claim is that the interval of the difference lies above 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from petra_core import methods
from reproduce import published
from reproduce.presentation.compare import SeedSample, means, measured_samples
from reproduce.presentation.content import Column, Entry, estimate, none
from reproduce.presentation.facets import METHOD_LOOKS, Look
from reproduce.presentation.tables import Field, estimate_column
from reproduce.records.frames import RunSet
from reproduce.records.gradients import BETWEEN, CLOSENESS, DELAYED, METHOD
from reproduce.text import count

STATEMENTS = published.quote("figure5")
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
CLOSER = (
    "e2e: the end-to-end gradient. PETRA closer by: the difference within a run, mean over the seeds, with its 95 % "
    "interval."
)


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


def quality(values: DataFrame, by: Sequence[str], gains: Mapping[Any, SeedSample]) -> list[Field]:
    """Return columns for rows that are places `by`: the quality of both gradients, and their difference (`gains`)."""
    means_of, seeds = measured_samples(values, "value", [*by, "pair", "measure"]), measured_samples(values, "value", by)
    fields = [Field([Column("seeds")], lambda place: [Entry(str(n := len(seeds[place].values)), n)])]
    for measure, group in MEASURES.items():
        fields += [
            _mean(means_of, pair, measure, name) for pair, name in ((METHOD, "PETRA/e2e"), (DELAYED, "delayed/e2e"))
        ]
        fields += [_closer(gains, measure, group)] * (measure in CLOSENESS)
    return fields


def _mean(samples: Mapping[Any, Any], pair: str, measure: str, name: str) -> Field:
    hint = LOOKS[pair].label
    return estimate_column(
        name, lambda place: samples[*place, pair, measure].estimate, group=MEASURES[measure], hint=hint
    )


def _closer(gains: Mapping[Any, SeedSample], measure: str, group: str) -> Field:
    def entries(place: Any) -> list[Entry]:
        gain = gains.get((*place, measure))
        if gain is None or gain.estimate is None:
            return [none("not defined")]
        return [estimate(gain.estimate, 4, sign=True)]

    return Field([Column("PETRA closer by", group=group)], entries)
