"""Beyond the paper: a RevNet with invertible down-sampling, in which no inner stage keeps its input.

The buffers vanish, but a permutation does not shrink the streams. Messages and graphs of the upper stages therefore
stay as large as those of the lowest. This exhibit shows both effects.
"""

from collections.abc import Iterator
from functools import cache

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.cells.networks import HELD
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, notes, result, text_of
from reproduce.grids.plans import table3
from reproduce.grids.plans.invertible import NETWORKS, OURS, PAPERS
from reproduce.grids.plans.table3 import BATCH
from reproduce.modelling.network import predict_held
from reproduce.presentation import facets
from reproduce.presentation.compare import differences, means, summarize
from reproduce.presentation.content import GIGABYTE, MEGABYTE
from reproduce.presentation.tables import amount, difference, judged_columns, mean, method, table, words
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction

BY, DEPTHS = ["k", "method", "model"], (18, 50)
SETTING = f"PETRA, k = 1, ImageNet, batch {BATCH}, float32; modelled, all stages together, each kind at its largest"


@cache
def predict_bytes(family: str, depth: int) -> dict[str, int]:
    """Predict the bytes of PETRA in the setting of Table 3 by kind, each at its largest, and their sum, from shapes."""
    stages = predict_held(table3.held("paper", "imagenet", f"{family}{depth}", methods.PETRA))
    kinds = {kind: sum(stage.peak.get(kind, 0) for stage in stages) for kind in KINDS}
    return {**kinds, "sum": sum(kinds.values())}


def whole(_: Frames) -> Iterator[Shown]:
    """Yield the memory at the paper's size."""
    gigabytes = {
        (depth, kind): [held[kind] / GIGABYTE for held in both]
        for depth in DEPTHS
        for both in [[predict_bytes(family, depth) for family in (PAPERS, OURS)]]
        for kind in (*HELD, "sum")
    }
    yield facets.facet(
        (
            {"network": f"{network}-{depth}", "kind": kind, "GB": amount_held}
            for (depth, kind), both in gigabytes.items()
            for network, amount_held in zip(("RevNet", "Invertible RevNet"), both, strict=True)
            if kind != "sum" and amount_held
        ),
        [facets.stack(sums=".1f")],
        key="invertible",
        caption=f"Memory of the paper's networks and of the invertible ones ({SETTING}).",
        x=facets.Axis("network", label="GB"),
        y="GB",
        hue="kind",
        looks=facets.KIND_LOOKS,
        panels=facets.Panels(height=2.0),
        legend="area",
    )
    yield Folded(
        table(
            key="invertible",
            caption=f"Memory by kind ({SETTING}).",
            rows=gigabytes,
            fields=[
                words("depth", lambda row: f"RevNet-{row[0]} and invertible RevNet-{row[0]}", heading=True),
                words("kind", lambda row: row[1].replace("_", " ")),
                amount("paper's, GB", lambda row: gigabytes[row][0], 2),
                amount("invertible, GB", lambda row: gigabytes[row][1], 2),
                difference("difference", lambda row: gigabytes[row][1] - gigabytes[row][0], 2),
            ],
            notes=["Inputs: of the stem in both networks, of the down-sampling stages in the paper's only."],
        )
    )
    sums = {depth: gigabytes[depth, "sum"] for depth in DEPTHS}
    listed = [f"RevNet-{depth} from {before:.1f} to {after:.1f} GB" for depth, (before, after) in sums.items()]
    shrunk = [after < before for before, after in (sums[DEPTHS[0]], sums[DEPTHS[-1]])]
    remark = ": it shrinks the deeper network only" * (shrunk == [False, True])
    yield Sentence(
        f"In the model invertible down-sampling takes {conjunction(listed)} (ImageNet, batch {BATCH}){remark}."
    )


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield accuracy and memory of both networks as trained."""
    accuracy = means(run_set.runs, "test_accuracy", BY)
    gaps = differences(accuracy, BY, model=NETWORKS[1])
    titles = dict(zip(run_set.runs["model"], run_set.runs["network"], strict=True))
    peak = run_set.runs.assign(counted=run_set.counted_bytes).groupby(BY)["counted"].max() / MEGABYTE
    setting = run_set.describe()
    yield table(
        key=f"invertible-{run_set.key}",
        caption=f"Accuracy and measured memory of both networks ({setting}).",
        rows=sorted(accuracy, key=lambda place: place[0]),
        fields=[
            words("k", lambda place: f"k = {place[0]}", heading=True),
            method(lambda place: methods.by_name(place[1])),
            words("network", lambda place: titles[place[2]]),
            mean("last epoch, %", accuracy.get),
            judged_columns("to the paper's", gaps.get),
            amount("peak, MB", peak.get, 1),
        ],
        notes=notes("invertible", "peak"),
    )
    summary = summarize(gaps.values())
    yield result(
        summary,
        text_of("invertible", "summary", setting=setting, summary=summary),
        f"The two networks have not been trained with the same settings yet ({setting}).",
        finding=True,
    )


EXHIBIT = declare("invertible", each, whole)
