"""Figure 4: accuracy against the accumulation factor k, for PETRA and backpropagation.

In the paper's figure backpropagation averages over one batch, independent of PETRA's k. This exhibit also compares
PETRA with backpropagation at the same effective batch. It shows every seed as a dot, and the differences, which the
paper's statement is about.
"""

from collections.abc import Iterator, Mapping

from reproduce.exhibits._exhibit import Sentence, Shown, declare, result, text_of
from reproduce.exhibits.table2 import by_cell, describe_fixed_batch
from reproduce.grids.plans.figure4 import NETWORK
from reproduce.grids.plans.sweeps import BACKPROPAGATION, PETRA, SWEEPS
from reproduce.presentation import facets
from reproduce.presentation.compare import Difference, SeedSamples, list_differences
from reproduce.presentation.tables import Field, judged_columns, mean, number, table
from reproduce.records.frames import RunSet, count_averaged_epochs
from reproduce.text import conjunction

FALL = 5.0  # in points: how far backpropagation must fall with k for the sentence to mention it
MATCHED, FIXED = "backpropagation at the same effective batch", "backpropagation at a fixed batch"
LEGEND = {MATCHED: "to the same effective batch", FIXED: "to a fixed batch"}


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the figure of a data set, its numbers, and the comparison with the paper's statement."""
    sweep, accuracy = SWEEPS[run_set.scale], by_cell(run_set, "final_accuracy")
    example, ks = sweep.cell(run_set.dataset, NETWORK, PETRA, 1), sorted(sweep.accumulations)
    fixed = sweep.baseline(run_set.dataset, NETWORK)
    petra, matched = (
        SeedSamples({k: accuracy(sweep.cell(run_set.dataset, NETWORK, method, k)) for k in ks})
        for method in (PETRA, BACKPROPAGATION)
    )
    references = {MATCHED: matched, FIXED: SeedSamples(dict.fromkeys(ks, accuracy(fixed)))}
    gaps = {name: {k: petra[k] - by_k[k] for k in ks} for name, by_k in references.items()}
    setting, epochs = run_set.describe(network=True), count_averaged_epochs(example)
    measure = f"averaged over the last {epochs} epochs" if epochs > 1 else "after the last epoch"
    key = f"figure4-{run_set.key}-{run_set.dataset}"
    yield _sentence(run_set, gaps[MATCHED], matched)
    yield facets.facet(
        run_set.done[run_set.done["batch_size"] == example.batch_size],
        [
            facets.hline(accuracy(fixed).estimate, f"Backpropagation, {fixed.batch_size} images per update"),
            facets.line("interval"),
            facets.dots(apart=0.08),
            facets.cut_to(run_set.done),
        ],
        key=key,
        caption=text_of("figure4", "figure", setting=setting, measure=measure),
        x="k",
        y="final_accuracy",
        panels=facets.Panels(height=3.8),
        beside=facets.Beside(
            [facets.differences({LEGEND[name]: {k: gap[k].estimate for k in ks} for name, gap in gaps.items()})],
            "PETRA − backpropagation, points",
        ),
    )

    def beside(name: str) -> list[Field]:
        return [
            mean("accuracy, %", references[name].get, group=name),
            judged_columns("PETRA − it", gaps[name].get, group=name),
        ]

    yield table(
        key=key,
        caption=f"Accuracy by k, {measure} ({setting}).",
        rows=ks,
        fields=[
            number("k", lambda k: k),
            number("images per update", lambda k: k * example.batch_size),
            mean("PETRA, %", petra.get),
            *beside(MATCHED),
            *beside(FIXED),
        ],
        notes=[f"At a fixed batch: {describe_fixed_batch(example)}."],
    )


def _sentence(run_set: RunSet, gaps: Mapping[int, Difference], matched: SeedSamples) -> Sentence:
    """State the gaps at the smallest and largest k, and how far backpropagation itself falls with fewer updates."""
    known = [k for k, gap in gaps.items() if gap.estimate]
    ends = dict.fromkeys([*known[:1], *known[-1:]])
    listed = list_differences({f"at k = {k}": gaps[k] for k in ends})
    exact = [estimate.mean for k in ends if (estimate := matched[k].estimate)]
    fewer = (
        f" Backpropagation itself falls from {exact[0]:.0f} % to {exact[-1]:.0f} %: a larger k leaves fewer updates."
        if exact and exact[-1] < exact[0] - FALL
        else ""
    )
    return result(
        listed,
        f"{run_set.after.capitalize()} PETRA − backpropagation at the same effective batch is {conjunction(listed)}, "
        f"in points.{fewer}",
        f"PETRA and backpropagation have not both been trained yet (scale “{run_set.scale}”).",
    )


EXHIBIT = declare("figure4", each)
