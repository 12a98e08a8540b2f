"""Table 6: partition and memory per stage of RevNet-18.

Only fragments of the published table are known, for unnamed stages. Our table is complete: the blocks of each stage,
and the memory that it holds under PETRA by kind, predicted from shapes and compared with Table 3's measurements.
"""

from collections.abc import Iterator

from petra_core.staleness import lockstep
from reproduce import published as published_tables
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import MemoryCell
from reproduce.cells.networks import HELD
from reproduce.exhibits._exhibit import Sentence, Shown, declare, run_sets, text_of
from reproduce.modelling.buffer_rules import revnet_sizes
from reproduce.modelling.network import predict_held
from reproduce.presentation import facets
from reproduce.presentation.content import GIGABYTE, MEGABYTE, Finding, Role
from reproduce.presentation.tables import amount, amounts, number, table, words
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction

DATASETS = ("imagenet", "cifar10")  # the paper does not name the data set of its table
SHOWN = {kind: kind for kind in HELD if kind not in ("buffers", "stashed_weights")}
PREDICTED = "predicted, MB"
FIRST_DOWN = 3  # the first stage after the stem that lowers the resolution


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the predicted memory of each stage, as a figure and as a table with its layers."""
    planned = run_sets(frames, "table6")[0].planned.values()
    cells = {cell.dataset: cell for cell in planned if isinstance(cell, MemoryCell)}
    predicted = {dataset: predict_held(cells[dataset]) for dataset in DATASETS}
    cell, stages = cells["imagenet"], predicted["imagenet"]
    sizes, setting = revnet_sizes(18, cell.dataset, cell.batch_size), f"ImageNet, batch {cell.batch_size}"
    total, inputs = sum(stage.total for stage in stages), sum(stage.peak["inputs"] for stage in stages)
    yield Sentence(
        text_of("table6", "sentence", gigabytes=total / GIGABYTE, setting=setting, share=100 * inputs / total)
    )
    recorded = frames.by_name.get(cell.name)
    rows = recorded.result["rows"] if recorded and recorded.done else []
    then = sum(row["predicted"] for row in rows)
    now = sum(stages[row["stage"]].peak[row["kind"]] for row in rows)
    if now != then:
        yield Finding(
            text_of("table6", "changed", now=now / GIGABYTE, setting=setting, then=then / GIGABYTE), Role.ALERT
        )
    kept = stages[FIRST_DOWN].peak["inputs"] / GIGABYTE
    fragments = published_tables.read("table6_fragments")
    listed = conjunction([f"{row['memory_gb']} GB for {row['fragment']}" for row in fragments])
    yield facets.facet(
        [
            {"images": catalogue.by_name(name).title, "stage": number, "kind": kind, "GB": held / GIGABYTE}
            for name, stages in predicted.items()
            for number, stage in enumerate(stages)
            for kind, held in stage.peak.items()
        ],
        [facets.stack(sideways=False)],
        key="stages",
        caption=f"Memory of each stage of RevNet-18 under PETRA, by kind (batch {cell.batch_size}; predicted).",
        x="stage",
        y=facets.Axis("GB", label="GB"),
        hue="kind",
        looks=facets.KIND_LOOKS,
        panels=facets.Panels(col="images", share=(False, False)),
        legend="area",
    )
    yield table(
        key="table6-imagenet",
        caption=text_of("table6", "stages", setting=setting),
        rows=zip(sizes, networks.build_outline(cell), stages, lockstep(len(sizes)), strict=True),
        fields=[
            number("stage j", lambda row: row[0].stage),
            words("layers", lambda row: networks.layers_of(row[1]), hint="“/2” is a stride of 2"),
            words("kind", lambda row: "buffered" if row[0].buffered else "reversible" if row[1].invertible else "head"),
            amount("parameters", lambda row: row[0].parameters / 4, 0),
            amount("staleness", lambda row: row[3], 0, hint="micro-batches between forward and backward"),
            *amounts(
                SHOWN, lambda row: {kind: held / MEGABYTE for kind, held in row[2].peak.items()}, 1, group=PREDICTED
            ),
            amount("all", lambda row: row[2].total / MEGABYTE, 1, group=PREDICTED, hint="with BatchNorm's statistics"),
        ],
        notes=[text_of("table6", "fragments", published=listed, stage=FIRST_DOWN, kept=kept, twice=2 * kept)],
    )


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the memory that every stage held in Table 3's measurements."""
    stages = run_set.parts().pivot_table("value", ["cell", "stage"], "of", aggfunc="sum") / MEGABYTE
    yield table(
        key=f"table6-held-{run_set.key}",
        caption=text_of("table6", "held", run_set=run_set),
        rows=run_set.done.itertuples(),
        fields=[
            words("network", lambda run: f"{run.network}, {catalogue.by_name(run.dataset).title}"),
            number("batch", lambda run: run.batch_size),
            *amounts({j: f"stage {j}" for j in range(10)}, lambda run: stages.loc[run.cell]["peak"], 2),
        ],
    )


EXHIBIT = declare("table6", each, whole)
