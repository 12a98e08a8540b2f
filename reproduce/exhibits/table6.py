"""Table 6: partition and memory per stage of RevNet-18.

Of the published table only fragments are known; they are shown as such. Ours is complete: which blocks are in which
stage, and what each stage holds under PETRA by kind, foretold from shapes at the paper's batch, and really held at the
batches of Table 3's measurements.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import seaborn as sns
from matplotlib.figure import Figure as Drawing

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.prediction.footprint import StagePrediction
from reproduce import published
from reproduce.cells import catalogue
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits.held import Group, Held, groups
from reproduce.grids.plans.table6 import MODEL
from reproduce.records.results import Results
from reproduce.show import plots
from reproduce.show.content import (
    GIGABYTE,
    KILOBYTE,
    MEGABYTE,
    TIMES,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    number,
    signed,
    text,
)
from reproduce.show.content import published as published_entry
from reproduce.show.plots import KIND_COLOURS

if TYPE_CHECKING:  # torch, for which the plan of a grid does not wait
    from petra_core.stages import Stage

DATASETS = ("imagenet", "cifar10")  # the paper does not say for which its table is; both are foretold
BATCH = 64
FIRST_DOWN = 3  # the first stage that lowers the resolution


def section(results: Results) -> Section:
    """The fragments, the partition with what each stage will hold, and what it really held."""
    found = [
        (group, group.held[methods.PETRA])
        for group in groups(results)
        if group.subject.model == MODEL and methods.PETRA in group.held
    ]
    blocks: list[Block] = [_INTRODUCTION, _fragments_table(), *(_partition_table(name) for name in DATASETS), _figure()]
    comparable = [pair for pair in found if pair[0].subject.batch_size == BATCH and pair[0].subject.width == 64]
    blocks += [_held_table(*pair) for pair in comparable]
    coverage = f"fragments published; all stages foretold at batch {BATCH}"
    if found:
        batches = ", ".join(
            f"{s.scale}: {catalogue.by_name(s.dataset).title} at width {s.width}, batch {s.batch_size}"
            for s in (group.subject for group, _ in found)
        )
        coverage += f"; really held: {len(found)} ({batches})"
    return Section(
        key="table6",
        title="Table 6: partition and memory per stage",
        blocks=blocks,
        findings=[*_findings(found)],
        coverage=coverage,
        folded=[_held_table(*pair) for pair in found if pair not in comparable],
        folded_title="Really held at other batches",
    )


_INTRODUCTION = (
    "RevNet-18 has ten stages: the stem, one residual block a stage, the head. Of the published table four values are "
    "known, second-hand, and neither their stages nor the data set; so they stand alone. Foretold is what the engine "
    "holds under PETRA in a full pipeline, each kind at its largest moment, from shapes alone; the same prediction is "
    "compared with what was held, stage by stage. What dominates are the inputs that buffered stages keep for "
    "2(J\N{MINUS SIGN}1\N{MINUS SIGN}j) micro-batches."
)


def blocks_of(stage: "Stage") -> str:
    """The layers of a stage in a few words, strides after a slash."""
    from torch import nn

    words = [
        f"conv {layer.kernel_size[0]}{TIMES}{layer.kernel_size[1]} {layer.in_channels}→{layer.out_channels}"
        + (f"/{layer.stride[0]}" if layer.stride[0] > 1 else "")
        if isinstance(layer, nn.Conv2d)
        else f"linear {layer.in_features}→{layer.out_features}"
        for layer in stage.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    return ", ".join(words)


def kind_of(stage: "Stage") -> str:
    """Whether the stage keeps its input."""
    from petra_core.stages import HeadStage

    if isinstance(stage, HeadStage):
        return "head"
    return "reversible" if stage.invertible else "buffered"


@cache
def _network(dataset: str) -> "tuple[Stage, ...]":
    import torch

    from petra_core.models import revnet

    known = catalogue.by_name(dataset)
    with torch.device("meta"):
        return tuple(revnet(18, num_classes=known.num_classes, stem=known.stem))


@cache
def _foretold(dataset: str) -> tuple[StagePrediction, ...]:
    from reproduce.measures.held_memory import predicted

    known = catalogue.by_name(dataset)
    return predicted(
        MemoryCell(
            scale="paper",
            dataset=dataset,
            image_size=known.image_size,
            model=MODEL,
            stem=known.stem,
            width=64,
            method=methods.PETRA.name,
            accumulation=1,
            batch_size=BATCH,
            seed=0,
        )
    )


def _findings(found: Sequence[tuple[Group, Held]]) -> Iterator[Finding]:
    sums = [stage.total for stage in _foretold("imagenet")]
    inputs = sum(stage.peak["inputs"] for stage in _foretold("imagenet"))
    largest = sums.index(max(sums))
    yield Finding(
        f"Table 6: of the {sum(sums) / GIGABYTE:.2f} GB foretold for RevNet-18 under PETRA (ImageNet, batch {BATCH}), "
        f"{100 * inputs / sum(sums):.0f} % are inputs that buffered stages keep; the largest stage is {largest} with "
        f"{max(sums) / GIGABYTE:.2f} GB. Published are fragments only, of unknown stages."
    )
    if found:
        equal, total = (sum(numbers) for numbers in zip(*(held.foretold for _, held in found), strict=True))
        yield Finding(
            f"Table 6: stage by stage and kind by kind, {equal} of {total} numbers of {len(found)} measurements are as "
            "foretold.",
            Tone.GOOD if equal == total else Tone.ALERT,
        )


def _fragments_table() -> Table:
    rows = published.read("table6_fragments")
    kept = _foretold("imagenet")[FIRST_DOWN].peak["inputs"] / GIGABYTE
    return Table(
        key="table6",
        caption="Memory per stage of RevNet-18 as published: all that is known of it.",
        columns=[Column("fragment", numeric=False), Column("GB", group="published")],
        rows=[
            [text(row["fragment"]), published_entry(row["memory_gb"], row.mark, value=row.number("memory_gb"))]
            for row in rows
        ],
        notes=(
            f"Of ours, stage {FIRST_DOWN}, the first that halves the resolution, keeps {kept:.2f} GB of inputs "
            f"(ImageNet, batch {BATCH}); twice that is {2 * kept:.2f} GB. Whether the published value of a "
            "non-reversible stage is made like this cannot be told from a fragment.",
        ),
    )


def _partition_table(dataset: str) -> Table:
    shown = [kind for kind in KINDS if kind not in ("buffers", "stashed_weights")]
    columns = [
        Column("stage j"),
        Column("layers", numeric=False),
        Column("kind", numeric=False),
        Column("parameters"),
        Column("delay", hint="micro-batches between forward and backward"),
        *(Column(kind.replace("_", " "), group="foretold, MB") for kind in shown),
        Column("all", group="foretold, MB"),
    ]
    stages = _network(dataset)
    body: list[list[Entry]] = []
    for stage, foretold in zip(stages, _foretold(dataset), strict=True):
        body.append(
            [
                number(foretold.stage, 0, tone=Tone.PLAIN),
                text(blocks_of(stage)),
                text(kind_of(stage)),
                number(sum(parameter.numel() for parameter in stage.parameters()), 0),
                number(methods.PETRA.delay(foretold.stage, len(stages)), 0),
                *(number(foretold.peak[kind] / MEGABYTE, 1) for kind in shown),
                number(foretold.total / MEGABYTE, 1),
            ]
        )
    return Table(
        key=f"table6-{dataset}",
        caption=(
            f"Partition of RevNet-18 and memory per stage under PETRA, foretold from shapes: "
            f"{catalogue.by_name(dataset).title}, batch {BATCH}, k = 1. 1 MB = 10⁶ bytes."
        ),
        columns=columns,
        rows=body,
        notes=(
            "“/2” is a stride of 2. All: with BatchNorm's statistics; PETRA stashes no weights. The graph lives within "
            "a tick only, so that a device needs it once however many stages it has.",
        ),
        data=[
            {"stage": foretold.stage, "kind": kind, "dataset": dataset, "batch": BATCH, "predicted": amount}
            for foretold in _foretold(dataset)
            for kind, amount in foretold.peak.items()
        ],
    )


def _held_table(group: Group, held: Held) -> Table:
    subject = group.subject
    unit, name = (KILOBYTE, "kB") if subject.scale == "smoke" else (MEGABYTE, "MB")
    shown = [kind for kind in KINDS if kind != "stashed_weights"]
    columns = [
        Column("stage j"),
        *(Column(kind.replace("_", " "), group=f"really held, {name}") for kind in shown),
        Column("all", group=f"really held, {name}"),
        Column("foretold", group=name),
        Column("difference", group=name),
    ]
    body = []
    for stage in range(held.stages):
        difference = held.peak(stage=stage) - held.predicted(stage=stage)
        body.append(
            [
                number(stage, 0, tone=Tone.PLAIN),
                *(number(held.peak(kind, stage=stage) / unit, 2) for kind in shown),
                number(held.peak(stage=stage) / unit, 2),
                number(held.predicted(stage=stage) / unit, 2),
                signed(difference / unit, 2, tone=Tone.ALERT if difference else Tone.OURS),
            ]
        )
    return Table(
        key=f"table6-held-{subject.scale}-{subject.dataset}-b{subject.batch_size}",
        caption=f"Memory per stage of {subject.title} as really held under PETRA, scale “{subject.scale}”, k = 1.",
        columns=columns,
        rows=body,
    )


def _figure() -> Figure:
    key, title = "stages", f"Memory of each stage of RevNet-18 under PETRA, foretold, batch {BATCH}"
    description = "One panel for each data set, one stacked bar for each stage. " + " ".join(
        f"{catalogue.by_name(dataset).title}: "
        + ", ".join(f"stage {s.stage} {s.total / GIGABYTE:.2f} GB" for s in _foretold(dataset))
        + "."
        for dataset in DATASETS
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 3.0), layout="constrained")
        for panel, dataset in zip(drawing.subplots(1, len(DATASETS)), DATASETS, strict=True):
            foretold = _foretold(dataset)
            bottom = [0.0] * len(foretold)
            for kind, colour in KIND_COLOURS.items():
                heights = [stage.peak[kind] / GIGABYTE for stage in foretold]
                panel.bar(range(len(foretold)), heights, bottom=bottom, color=colour, width=0.72, label=kind)
                bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
            panel.set(
                title=catalogue.by_name(dataset).title, xlabel="stage j", ylabel="GB", xticks=range(len(foretold))
            )
            panel.tick_params(axis="x", length=0)
        sns.despine(drawing)
        handles, labels = drawing.axes[0].get_legend_handles_labels()
        names = [label.replace("_", " ") for label in labels]
        drawing.legend(handles, names, loc="outside lower center", ncols=len(labels))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    return Figure(
        key, title, description, svg, f"{title}, by kind, each at its largest moment. Foretold, not measured."
    )
