"""Table 4: ablation of the buffers of inputs and weights, with k = 1.

A backward approximates whatever is not in a buffer. The possible cost of reconstruction depends on the number of stages
that evaluate their function at a reconstructed input. This number is derived and listed with every result.
"""

from collections.abc import Iterator
from typing import Any

from petra_core import methods
from reproduce.exhibits._exhibit import Sentence, Shown, declare, text_of
from reproduce.exhibits.figure5 import count_reconstructing
from reproduce.grids.plans.table4 import METHODS
from reproduce.presentation import facets
from reproduce.presentation.compare import Difference, format_difference, means
from reproduce.presentation.tables import judged_columns, mean, table, words
from reproduce.records.frames import RunSet
from reproduce.records.gradients import kinds_of

FULL, INPUTS, WEIGHTS, PETRA = (
    m.name for m in (methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.DSP, methods.PETRA)
)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the ablation, and the comparison with the paper's statement."""
    accuracy = means(run_set.runs, "test_accuracy", ["network", "method"])
    networks = {network: count_reconstructing(kinds) for network, kinds in kinds_of(run_set).items()}
    key, recipe = f"table4-{run_set.key}-{run_set.dataset}", run_set.describe(width=False)
    made = {network for network, _ in accuracy if accuracy[network, FULL].values}
    deepest = max(networks, key=lambda network: (network in made, kinds_of(run_set)[network].count("R")))
    gaps = [accuracy[deepest, m] - accuracy[deepest, FULL] for m in (INPUTS, WEIGHTS, PETRA)]
    inputs, weights, both = map(format_difference, gaps)
    yield Sentence(
        f"{run_set.after.capitalize()} on {deepest.partition(',')[0]}, where {networks[deepest]}, reconstructed inputs "
        f"change accuracy by {inputs} points, current weights by {weights}, both together by {both}.",
        known=any(gap.estimate for gap in gaps),
    )
    yield facets.facet(
        run_set.done,
        [facets.rows()],
        key=key,
        caption=f"Accuracy by what is buffered ({recipe}). Dot: a seed; bar: mean.",
        x="test_accuracy",
        y="method",
        panels=facets.Panels(col="network", share=(False, True), height=1.9),
        legend="",
    )

    def difference(row: Any) -> Difference | None:
        network, method = row
        if method is None:
            return accuracy[network, INPUTS] - accuracy[network, WEIGHTS]
        return None if method.name == FULL else accuracy[network, method.name] - accuracy[network, FULL]

    yield table(
        key=key,
        caption=text_of("table4", "table", setting=recipe),
        rows=[(network, method) for network in networks for method in (*METHODS, None)],
        fields=[
            words("network", lambda row: f"{row[0]}: {networks[row[0]]}", heading=True),
            words("method", lambda row: row[1].title if row[1] else "reconstructed inputs − current weights"),
            words("inputs", lambda row: row[1] and ("reconstructed" if row[1].reconstructs else "kept")),
            words("weights", lambda row: row[1] and ("kept" if row[1].stashes_weights else "current")),
            mean("ours, %", lambda row: accuracy[row[0], row[1].name] if row[1] else None),
            judged_columns("− both kept", difference),
        ],
    )


EXHIBIT = declare("table4", each)
