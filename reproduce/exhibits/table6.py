"""Table 6: partition and memory per stage of RevNet-18.

Of the published table only fragments are known; they are shown as such. Ours is complete: which blocks are in which
stage, and what each stage holds under PETRA by kind, predicted from shapes at the paper's batch, and really held at the
batches of Table 3's measurements.
"""

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from petra_core.ledger import KINDS
from petra_core.prediction.footprint import StagePrediction
from reproduce import published as published_tables
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits._exhibit import Coverage, Exhibit, Folded, Sentence, Shown
from reproduce.exhibits.table3 import agreement, by_kind, subject
from reproduce.grids.plans.table6 import cells
from reproduce.modelling.buffer_rules import StageSize, revnet_sizes
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.content import GIGABYTE, KILOBYTE, MEGABYTE, TIMES, Figure, Finding, Table
from reproduce.show.facets import KIND_LOOKS, facet
from reproduce.show.tables import amount, difference, number, published, published_value, table, words

if TYPE_CHECKING:  # torch, for which the plan of a grid does not wait
    from petra_core.stages import Stage

DATASETS = ("imagenet", "cifar10")  # the paper does not say for which its table is; both are predicted
BATCH = 64
FIRST_DOWN = 3  # the first stage that lowers the resolution
INTRODUCTION = (
    "RevNet-18 has ten stages: the stem, one residual block a stage, the head. Of the published table four values are "
    "known, second-hand, and neither their stages nor the data set; so they stand alone. Predicted is what the engine "
    "holds under PETRA in a full pipeline, each kind at its largest moment, from shapes alone; the same prediction is "
    "compared with what was held, stage by stage. What dominates are the inputs that buffered stages keep for "
    "2(J\N{MINUS SIGN}1\N{MINUS SIGN}j) micro-batches."
)


def blocks_of(stage: "Stage") -> str:
    """The layers of a stage in a few words, strides after a slash."""
    from torch import nn

    layers = [
        f"conv {layer.kernel_size[0]}{TIMES}{layer.kernel_size[1]} {layer.in_channels}→{layer.out_channels}"
        + (f"/{layer.stride[0]}" if layer.stride[0] > 1 else "")
        if isinstance(layer, nn.Conv2d)
        else f"linear {layer.in_features}→{layer.out_features}"
        for layer in stage.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    return ", ".join(layers)


def _cell(dataset: str) -> MemoryCell:
    """At the paper's width and batch."""
    return next(c for c in cells("paper") if isinstance(c, MemoryCell) and c.dataset == dataset)


@cache
def _predicted(dataset: str) -> tuple[StagePrediction, ...]:
    from reproduce.measures.held_memory import predicted

    return predicted(_cell(dataset))


def whole(frames: Frames) -> Iterator[Shown]:
    """The fragments, and the partition with what each stage will hold."""
    stages = _predicted("imagenet")
    largest, total = max(stages, key=lambda stage: stage.total), sum(stage.total for stage in stages)
    kept = stages[FIRST_DOWN].peak["inputs"] / GIGABYTE
    yield Coverage(f"fragments published; all stages predicted at batch {BATCH}")
    inputs = f"{100 * sum(stage.peak['inputs'] for stage in stages) / total:.0f} % are inputs that buffered stages keep"
    yield Sentence(f"Of the {total / GIGABYTE:.2f} GB predicted for RevNet-18 (ImageNet, batch {BATCH}), {inputs}.")
    yield Finding(
        f"Table 6: of the {total / GIGABYTE:.2f} GB predicted for RevNet-18 under PETRA (ImageNet, batch {BATCH}), "
        f"{inputs}; the largest stage is {largest.stage} with {largest.total / GIGABYTE:.2f} GB. Published are "
        "fragments only, of unknown stages."
    )
    yield from agreement(frames, "table6")
    yield table(
        key="table6",
        caption="Memory per stage of RevNet-18 as published: all that is known of it.",
        rows=published_tables.read("table6_fragments"),
        fields=[
            words("fragment", lambda row: row["fragment"]),
            published("GB", lambda row: published_value(row, "memory_gb"), group="published"),
        ],
        notes=(
            f"Of ours, stage {FIRST_DOWN}, the first that halves the resolution, keeps {kept:.2f} GB of inputs "
            f"(ImageNet, batch {BATCH}); twice that is {2 * kept:.2f} GB. Whether the published value of a "
            "non-reversible stage is made like this cannot be told from a fragment.",
        ),
    )
    yield from map(_partition, DATASETS)
    yield _bars()


def _partition(dataset: str) -> Table:
    known = catalogue.by_name(dataset)
    stages = networks.outlined(_cell(dataset), known.num_classes)
    sizes = revnet_sizes(18, dataset, BATCH)

    def kind(size: StageSize) -> str:
        return "head" if size.stage == len(sizes) - 1 else "buffered" if size.buffered else "reversible"

    shown = [kind for kind in KINDS if kind not in ("buffers", "stashed_weights")]
    return table(
        key=f"table6-{dataset}",
        caption=f"Partition of RevNet-18 and memory per stage under PETRA, predicted from shapes: {known.title}, batch "
        f"{BATCH}, k = 1. 1 MB = 10⁶ bytes.",
        rows=zip(sizes, stages, _predicted(dataset), strict=True),
        fields=[
            number("stage j", lambda row: row[0].stage),
            words("layers", lambda row: blocks_of(row[1])),
            words("kind", lambda row: kind(row[0])),
            amount("parameters", lambda row: row[0].parameters / 4, 0),
            amount("delay", lambda row: row[0].staleness, 0, hint="micro-batches between forward and backward"),
            *by_kind(lambda row: row[2].peak, MEGABYTE, 1, group="predicted, MB", kinds=shown),
        ],
        notes=(
            "“/2” is a stride of 2. All: with BatchNorm's statistics; PETRA stashes no weights. The graph lives within "
            "a tick only, so that a device needs it once however many stages it has.",
        ),
    )


def _bars() -> Figure:
    title = f"Memory of each stage of RevNet-18 under PETRA, predicted, batch {BATCH}"
    titles = {dataset: catalogue.by_name(dataset).title for dataset in DATASETS}
    return facet(
        [
            {"dataset": titles[dataset], "stage": stage.stage, "kind": kind, "gigabytes": stage.peak[kind] / GIGABYTE}
            for dataset in DATASETS
            for stage in _predicted(dataset)
            for kind in KINDS
        ],
        [facets.stack(sideways=False)],
        key="stages",
        title=title,
        caption=f"{title}, by kind, each at its largest moment. Predicted, not measured.",
        x="stage",
        y="gigabytes",
        hue="kind",
        looks=KIND_LOOKS,
        col="dataset",
        xlabel="stage j",
        ylabel="GB",
        share=(False, False),
        legend="area",
    )


def each(sheet: Sheet) -> Iterator[Shown]:
    """What each stage really held; on demand where that is not of the paper's batch and width."""
    unit, name = (KILOBYTE, "kB") if sheet.scale == "smoke" else (MEGABYTE, "MB")
    for run in sheet.done.itertuples():
        held = _held(sheet, run, unit, name)
        yield held if (run.batch_size, run.width) == (BATCH, 64) else Folded(held)


def _held(sheet: Sheet, run: Any, unit: float, name: str) -> Table:
    parts = sheet.frames.parts([run.cell])
    peak = parts[parts["of"] == "peak"].pivot(index="stage", columns="kind", values="value")
    predicted = parts[parts["of"] == "predicted"].groupby("stage")["value"].sum()
    shown = [kind for kind in KINDS if kind != "stashed_weights"]
    return table(
        key=f"table6-held-{sheet.key}-{run.dataset}-b{run.batch_size}",
        caption=f"Memory per stage of {subject(run)} as really held under PETRA, scale “{sheet.scale}”, k = 1.",
        rows=peak.iterrows(),
        fields=[
            number("stage j", lambda row: row[0]),
            *by_kind(lambda row: row[1], unit, 2, group=f"really held, {name}", kinds=shown),
            amount("predicted", lambda row: predicted[row[0]] / unit, 2, group=name),
            difference("difference", lambda row: (row[1].sum() - predicted[row[0]]) / unit, 2, group=name, exact=True),
        ],
    )


EXHIBIT = Exhibit(
    "table6",
    "Table 6: partition and memory per stage",
    INTRODUCTION,
    each,
    whole,
    folded="Really held at other batches",
    judged=False,  # fragments of unknown stages are all that is published
)
