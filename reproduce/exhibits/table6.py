"""Table 6: partition and memory per stage of RevNet-18.

Of the published table only fragments are known, of stages that are not named. So ours is complete: which blocks are in
which stage, and what each holds under PETRA by kind, predicted from shapes, beside what Table 3's measurements held.
"""

from collections.abc import Iterator

from petra_core.ledger import KINDS
from reproduce import published as published_tables
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown, sheets
from reproduce.modelling.buffer_rules import revnet_sizes
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.content import GIGABYTE, MEGABYTE, Finding, Standing
from reproduce.show.facets import KIND_LOOKS, facet
from reproduce.show.tables import amount, amounts, difference, number, published, published_value, table, words

DATASETS = ("imagenet", "cifar10")  # the paper does not say for which its table is
SHOWN = {kind: kind for kind in KINDS if kind not in ("buffers", "stashed_weights")}
PREDICTED = "predicted, MB"
FIRST_DOWN = 3  # the first stage that lowers the resolution
INTRODUCTION = (
    "RevNet-18 has ten stages: the stem, one residual block a stage, the head. Predicted is what the engine holds "
    "under PETRA in a full pipeline, each kind of tensors at its largest moment, from shapes alone. What dominates are "
    "the inputs that buffered stages keep for 2(J\N{MINUS SIGN}1\N{MINUS SIGN}j) micro-batches."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """The fragments, what each stage is predicted to hold, drawn and in numbers, and its layers."""
    from reproduce.measures.held_memory import predicted

    planned = next(sheets(frames, "table6")).planned
    cells = {cell.dataset: cell for cell in planned if isinstance(cell, MemoryCell)}
    every = {dataset: predicted(cells[dataset]) for dataset in DATASETS}
    cell, stages = cells["imagenet"], every["imagenet"]
    sizes, setting = revnet_sizes(18, cell.dataset, cell.batch_size), f"ImageNet, batch {cell.batch_size}"
    total, inputs = sum(stage.total for stage in stages), sum(stage.peak["inputs"] for stage in stages)
    said = (
        f"Of the {total / GIGABYTE:.2f} GB predicted for RevNet-18 ({setting}), {100 * inputs / total:.0f} % are "
        "inputs that buffered stages keep."
    )
    yield Sentence(said)
    yield Finding(f"Table 6: {said}")
    such = {
        "one stage": [stage.total for stage in stages],
        "a non-reversible stage": [stages[size.stage].total for size in sizes if size.buffered],
    }
    fragments = published_tables.read("table6_fragments")
    inside = [
        min(such[row["fragment"]]) <= GIGABYTE * row.number("memory_gb") <= max(such[row["fragment"]])
        for row in fragments
    ]
    yield Standing.REPRODUCED if all(inside) else Standing.DIFFERS
    kept = stages[FIRST_DOWN].peak["inputs"] / GIGABYTE
    yield table(
        key="table6",
        caption=f"Memory per stage of RevNet-18: all that is known of the published table, and ours ({setting}), "
        "predicted. 1 GB = 10⁹ bytes.",
        rows=fragments,
        fields=[
            words("fragment", lambda row: row["fragment"]),
            published("published, GB", lambda row: published_value(row, "memory_gb")),
            amount("ours, least such stage, GB", lambda row: min(such[row["fragment"]]) / GIGABYTE, 2),
            amount("ours, largest such stage, GB", lambda row: max(such[row["fragment"]]) / GIGABYTE, 2),
        ],
        notes=(
            f"Which stages and which data set the fragments are of is not known. Stage {FIRST_DOWN}, the first that "
            f"halves the resolution, keeps {kept:.2f} GB of inputs; twice that is {2 * kept:.2f} GB.",
        ),
    )
    yield facet(
        [
            {"images": catalogue.by_name(name).title, "stage": stage.stage, "kind": kind, "bytes": of / GIGABYTE}
            for name, stages in every.items()
            for stage in stages
            for kind, of in stage.peak.items()
        ],
        [facets.stack(sideways=False)],
        key="stages",
        title="Memory of each stage of RevNet-18 under PETRA, predicted",
        caption=f"Memory of each stage of RevNet-18 under PETRA, by kind, batch {cell.batch_size}. Predicted, not "
        "measured.",
        x="stage",
        y="bytes",
        hue="kind",
        looks=KIND_LOOKS,
        col="images",
        xlabel="stage j",
        ylabel="GB",
        share=(False, False),
        legend="area",
    )
    yield table(
        key="table6-imagenet",
        caption=f"Partition of RevNet-18 and memory per stage under PETRA, predicted ({setting}, k = 1). "
        "1 MB = 10⁶ bytes.",
        rows=zip(sizes, networks.outlined(cell, catalogue.by_name(cell.dataset).num_classes), stages, strict=True),
        fields=[
            number("stage j", lambda row: row[0].stage),
            words("layers", lambda row: networks.layers_of(row[1]), hint="“/2” is a stride of 2"),
            words("kind", lambda row: "buffered" if row[0].buffered else "reversible" if row[1].invertible else "head"),
            amount("parameters", lambda row: row[0].parameters / 4, 0),
            amount("delay", lambda row: row[0].staleness, 0, hint="micro-batches between forward and backward"),
            amounts(SHOWN, lambda row: {kind: of / MEGABYTE for kind, of in row[2].peak.items()}, 1, group=PREDICTED),
            amount("all", lambda row: row[2].total / MEGABYTE, 1, group=PREDICTED, hint="with BatchNorm's statistics"),
        ],
        notes=("The graph lives within a tick only: a device needs it once however many stages it has.",),
    )


def each(sheet: Sheet) -> Iterator[Shown]:
    """What every stage held in Table 3's measurements."""
    parts = sheet.parts()
    stages = parts.pivot_table(index=["cell", "stage"], columns="of", values="value", aggfunc="sum") / MEGABYTE
    yield table(
        key=f"table6-held-{sheet.key}",
        caption=f"Memory of every stage as really held under PETRA, MB, scale “{sheet.scale}”, k = 1.",
        rows=sheet.done.itertuples(),
        fields=[
            words("network", lambda run: f"{run.network}, {catalogue.by_name(run.dataset).title}"),
            number("batch", lambda run: run.batch_size),
            amounts({j: f"stage {j}" for j in range(10)}, lambda run: stages.loc[run.cell]["peak"], 2),
            difference(
                "less predicted",
                lambda run: (stages.loc[run.cell]["peak"] - stages.loc[run.cell]["predicted"]).abs().sum(),
                2,
                hint="sum over stages of what departs, whatever its sign",
                exact=True,
            ),
        ],
    )


EXHIBIT = Exhibit(
    "table6",
    "Table 6: partition and memory per stage",
    INTRODUCTION,
    each,
    whole,
)
