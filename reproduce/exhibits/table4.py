"""Table 4: the buffer ablation: which of inputs and weights may be approximated, k = 1.

What a backward does not find in a buffer, it approximates. How much reconstruction can cost depends on the network: on
how many stages evaluate their function at a reconstructed input, which is derived and said beside every number.
"""

from collections.abc import Iterator
from typing import Any

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.table4 import METHODS
from reproduce.modelling.gradients import kinds_of
from reproduce.records.frames import Sheet
from reproduce.show import facets, statements
from reproduce.show.compare import Difference, bounded, means
from reproduce.show.content import Entry, estimate
from reproduce.show.statements import UNKNOWN, claim_entries, combine, is_below
from reproduce.show.tables import entry, judged, mean, table, words

STATEMENT = statements.of("table4")
FULL, INPUTS, WEIGHTS, PETRA = (
    m.name for m in (methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.DSP, methods.PETRA)
)
INTRODUCTION = (
    "Accuracy with k = 1 under the four combinations of buffered inputs and buffered weights, for stages that can be "
    "inverted; the others keep their inputs in every row. The published values (CIFAR-100, RevNet-18, 34 and 50) are "
    f"unknown; stated is: {STATEMENT.quoted}. Reconstruction can cost something only where a stage evaluates its "
    "residual F at a reconstructed input."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """The ablation, and what it says to the paper's statement."""
    accuracy = means(sheet.runs, "test_accuracy", ["network", "method"])
    networks = {
        n: f"F at a reconstructed input in {k.count('R')} of {len(k)} stages" for n, k in kinds_of(sheet).items()
    }
    less = {(n, m): accuracy[n, m] - accuracy[n, FULL] for n in networks for m in (WEIGHTS, INPUTS, PETRA)}
    halves = {network: (accuracy[network, INPUTS] - accuracy[network, WEIGHTS]).estimate for network in networks}
    outcomes = {network: combine([is_below(half)]) for network, half in halves.items()}
    key, recipe = f"table4-{sheet.key}-{sheet.dataset}", sheet.described(width=False)
    first, structure = next(iter(networks.items()))
    gaps = [accuracy[first, m] - accuracy[first, FULL] for m in (INPUTS, WEIGHTS, PETRA)]
    inputs, weights, both = map(bounded, gaps)
    yield Sentence(
        f"{first.partition(',')[0]}, {structure}: approximate inputs {inputs}, weights {weights}, both {both} points.",
        known=any(gap.estimate for gap in gaps),
    )
    yield facets.facet(
        sheet.done,
        [facets.rows()],
        key=key,
        caption=f"Accuracy by what is buffered ({recipe}). Dot: a seed; bar: mean.",
        x="test_accuracy",
        y="method",
        col="network",
        share=(False, True),
        height=1.9,
        legend="",
    )

    def difference(row: Any) -> Difference | list[Entry] | None:
        network, method = row
        return less.get((network, method.name)) if method else claim_entries(halves[network], outcomes[network])

    yield table(
        key=key,
        caption=f"Top-1 accuracy in percent after the last epoch by what is buffered ({recipe}); last, the paper's "
        "statement.",
        rows=[(network, method) for network in networks for method in (*METHODS, None)],
        fields=[
            words("network", lambda row: f"{row[0]}: {networks[row[0]]}"),
            words("method", lambda row: row[1].title if row[1] else "inputs reconstructed less weights current"),
            words("inputs", lambda row: row[1] and ("reconstructed" if row[1].reconstructs else "kept")),
            words("weights", lambda row: row[1] and ("kept" if row[1].stashes_weights else "current")),
            entry("published", lambda row: UNKNOWN if row[1] else STATEMENT.entry),
            mean("ours, %", lambda row: accuracy[row[0], row[1].name] if row[1] else None),
            judged("less both kept", difference),
        ],
        notes=[
            "The statement: agree if the interval of the difference is below 0, disagree if above, or around 0 and "
            "within the margin; uncorrected for the number of networks."
        ],
        grouped=True,
    )
    said = "; ".join(
        f"{name} ({networks[name]}): {estimate(half, 2, sign=True).text} points, our data {outcomes[name].verb}"
        for name, half in halves.items()
        if half
    )
    if said:
        said = f"{said}; uncorrected for the number of networks"
        yield from statements.answer(f"Table 4: {recipe}", sheet.scale, STATEMENT, said, outcomes.values())


EXHIBIT = Exhibit("table4", "Table 4: buffer ablation", INTRODUCTION, each)
