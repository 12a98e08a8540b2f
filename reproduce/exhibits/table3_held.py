"""Table 3 as it was really held: the engine's buffers beside the rules evaluated at the same batch.

The engine holds more than the rules count: the graphs that delayed gradients keep (the rule has their inputs only),
messages that wait, gradients and momentum. So the kinds that the rules count are summed on their own, and the rest
stands beside them.
"""

from collections.abc import Iterator, Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch

from petra_core.ledger import KINDS
from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits.held import COUNTED, Group, Held
from reproduce.grids.plans.table3 import METHODS
from reproduce.modelling.buffer_rules import (
    CONFIGURATIONS,
    CONSISTENT_RULE,
    PUBLISHED_RULE,
    BufferRule,
    Configuration,
    StageSize,
    memory,
    revnet_sizes,
)
from reproduce.records.results import Run
from reproduce.show import plots
from reproduce.show.content import (
    GIGABYTE,
    MEGABYTE,
    Column,
    Entry,
    Figure,
    Finding,
    Table,
    Tone,
    method_name,
    missing,
    number,
    short_title,
    signed,
    text,
)
from reproduce.show.plots import KIND_COLOURS
from reproduce.words import conjunction

CONFIGURATION: dict[Method, Configuration] = dict(zip(METHODS, CONFIGURATIONS, strict=True))
WORKING = ("messages", "gradients", "optimizer")

INTRODUCTION = (
    "Below the buffers were really held: the engine ran on random images (bytes depend on shapes, not on what is seen) "
    "until every buffer had reached its size, and counted each stage's tensors by what they are for, each kind at its "
    "largest moment. Every number stands beside the rules at its own batch, and none is scaled to another one. The "
    "growth of the process is the system's word, which knows nothing of the engine's count: a tensor that two stages "
    "share counts at both in the engine and once in the process; what kernels and the allocator take for themselves "
    "counts in the process alone. Delayed gradients keep whole graphs here, as PipeDream does; the rule counts the "
    "inputs of those."
)


def gigabytes(group: Group | None, method: Method) -> list[Entry]:
    """What the rules count and everything, of one configuration; or what there is instead."""
    run = group.runs.get(method) if group else None
    if run is None or not run.done:
        return [_instead(run), missing("")]
    held = Held(run)
    return [number(held.peak(*COUNTED) / GIGABYTE, 2), number(held.peak() / GIGABYTE, 2)]


def findings(found: Sequence[Group]) -> Iterator[Finding]:
    """How well measurements are foretold; what each scale's largest network saved of which all four were held."""
    all_held = [held for group in found for held in group.held.values()]
    if not all_held:
        return
    equal, total = (sum(numbers) for numbers in zip(*(held.foretold for held in all_held), strict=True))
    yield Finding(
        f"Table 3: {len(all_held)} measurements of really held buffers, in which {equal} of {total} numbers (stage, "
        "kind) equal the prediction from shapes.",
        Tone.GOOD if equal == total else Tone.ALERT,
    )
    complete = [group for group in found if len(group.held) == len(METHODS)]
    for scale in dict.fromkeys(group.subject.scale for group in complete):
        own = [group for group in complete if group.subject.scale == scale]
        group = max(own, key=lambda group: group.held[METHODS[0]].peak())
        whole, petra = (group.held[method] for method in (METHODS[0], METHODS[-1]))
        counted = 100 * (1 - petra.peak(*COUNTED) / whole.peak(*COUNTED))
        yield Finding(
            f"{group.subject.title} (scale “{scale}”): PETRA held {petra.peak() / GIGABYTE:.2f} GB "
            f"where delayed gradients held {whole.peak() / GIGABYTE:.2f} GB, {_saving(petra, whole):.1f} % less; "
            f"of what the published rule counts, {counted:.1f} % less.",
        )


def table(scale: str, found: Sequence[Group]) -> Table:
    """Every configuration of every network and shape."""
    columns = [
        Column("network", numeric=False),
        Column("method", numeric=False),
        Column("published rule", group="by formula, MB"),
        Column("consistent rule", group="by formula, MB"),
        Column("of the rules", group="really held, MB", hint="of the kinds that the rules count"),
        Column("difference", group="really held, MB", hint="to the published rule"),
        Column("graphs", group="really held, MB"),
        Column("other", group="really held, MB", hint="messages, gradients, momentum"),
        Column("all", group="really held, MB"),
        Column("saving, %", group="really held, MB", hint="of all, against delayed gradients at the same batch"),
        Column("difference", group="prediction, MB", hint="what was held less what was foretold"),
        Column("growth", group="process, MB", hint="at its peak, by the system's word"),
    ]
    return Table(
        key=f"table3-held-{scale}",
        caption=(
            f"Memory as held by the engine, all stages, scale “{scale}”, float32, k = 1, beside the rules at the same "
            "batch. 1 MB = 10⁶ bytes."
        ),
        columns=columns,
        rows=[_row(group, method, run) for group in found for method, run in group.runs.items()],
        notes=(
            "Of the rules: weights, BatchNorm statistics, inputs kept and stashed weights. Other: messages, gradients, "
            "momentum. The difference to the published rule is what the engine does otherwise: the stem keeps its "
            "images under every method, a reversible stage that rebuilds its input keeps none (it waits as a message), "
            "the head keeps both streams, and BatchNorm has a counter of batches.",
            "Approximate inputs is the row without input buffer and with parameter buffer, DSP the other way round.",
        ),
        data=[line for group in found for line in _data(group)],
        grouped=True,
    )


def stages_table(scale: str, found: Sequence[Group]) -> Table:
    """Peak bytes of every stage of the largest network, on the largest images."""
    columns = [
        Column("network and method", numeric=False),
        Column("stage j"),
        *(Column(kind.replace("_", " "), group="peak, MB") for kind in KINDS),
        Column("all", group="peak, MB"),
    ]
    body = [
        [
            text(f"{group.subject.title}, {method.title}"),
            number(stage, 0, tone=Tone.PLAIN),
            *(number(held.peak(kind, stage=stage) / MEGABYTE, 2) for kind in KINDS),
            number(held.peak(stage=stage) / MEGABYTE, 2),
        ]
        for group in found[:1]
        for method, held in group.held.items()
        for stage in range(held.stages)
    ]
    return Table(
        key=f"table3-stages-{scale}",
        caption=f"Every stage of {found[0].subject.title}, as held; the download of the table above has all networks.",
        columns=columns,
        rows=body,
        grouped=True,
    )


def figures(scale: str, found: Sequence[Group]) -> Iterator[Figure]:
    """Stacked bars by kind, one panel a shape of images, at one batch each."""
    shown: dict[str, list[Group]] = {}
    for group in found:
        own = shown.setdefault(group.subject.dataset, [])
        if group.held and all(other.subject.depth != group.subject.depth for other in own):  # the first batch of each
            own.append(group)
    shown = {dataset: own for dataset, own in shown.items() if own}
    if shown:
        yield _figure(scale, shown)


def _row(group: Group, method: Method, run: Run[MemoryCell]) -> list[Entry]:
    by_rule = [_by_rule(group, method, rule) for rule in (PUBLISHED_RULE, CONSISTENT_RULE)]
    head = [
        text(f"{group.subject.title}, J = {len(_sizes(group))}"),
        method_name(method),
        *(number(amount / MEGABYTE, 1) for amount in by_rule),
    ]
    if not run.done:
        return [*head, _instead(run), *[missing("")] * 7]
    held = Held(run)
    whole = group.held.get(METHODS[0])
    difference = held.peak() - held.predicted()
    process = held.process
    return [
        *head,
        number(held.peak(*COUNTED) / MEGABYTE, 1),
        signed((held.peak(*COUNTED) - by_rule[0]) / MEGABYTE, 1),
        number(held.peak("graph") / MEGABYTE, 1),
        number(held.peak(*WORKING) / MEGABYTE, 1),
        number(held.peak() / MEGABYTE, 1),
        number(_saving(held, whole), 1) if whole else missing("", "delayed gradients not held at this batch"),
        signed(difference / MEGABYTE, 1, tone=Tone.ALERT if difference else Tone.OURS),
        number(process["peak"] / MEGABYTE, 1, hint=process["source"]) if process else missing("not known"),
    ]


def _data(group: Group) -> Iterator[dict[str, object]]:
    for method, held in group.held.items():
        for row in held.rows:
            yield {**group.subject._asdict(), "method": method.name, "stages": held.stages, **row}


def _instead(run: Run[MemoryCell] | None) -> Entry:
    if run is None:
        return missing("no cell")
    return missing(str(run.state), run.state.detail)


def _sizes(group: Group) -> Sequence[StageSize]:
    subject = group.subject
    return revnet_sizes(subject.depth, subject.dataset, subject.batch_size, subject.width)


def _by_rule(group: Group, method: Method, rule: BufferRule) -> int:
    return memory(_sizes(group), CONFIGURATION[method], rule, group.subject.accumulation)


def _saving(held: Held, whole: Held) -> float:
    return 100 * (1 - held.peak() / whole.peak())


def _figure(scale: str, shown: dict[str, list[Group]]) -> Figure:
    key, title = f"held-{scale}", "Memory as held, by kind"
    totals = [
        f"{group.subject.title}: "
        + ", ".join(f"{method.title} {held.peak() / GIGABYTE:.3g} GB" for method, held in group.held.items())
        for own in shown.values()
        for group in own
    ]
    description = "One panel for each shape of images, one stacked bar for each network and method. " + "; ".join(
        totals
    )
    bars = max(sum(len(group.held) for group in own) for own in shown.values())
    with plots.style():
        drawing = Drawing(figsize=(10.4, 1.3 + 0.26 * bars), layout="constrained")
        for panel, (dataset, own) in zip(drawing.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
            _bars(panel, own)
            batches = conjunction([*dict.fromkeys(str(group.subject.batch_size) for group in own)])
            panel.set(title=f"{catalogue.by_name(dataset).title}, batch {batches}", xlabel="GB, all stages")
        sns.despine(drawing, left=True)
        handles = [Patch(color=colour, label=kind.replace("_", " ")) for kind, colour in KIND_COLOURS.items()]
        drawing.legend(handles=handles, loc="outside lower center", ncols=len(KINDS))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    caption = (
        f"{title}, each kind at its largest moment, scale “{scale}”, k = 1. Every panel has an axis of its own. "
        "1 GB = 10⁹ bytes."
    )
    return Figure(key, title, description, svg, caption)


def _bars(panel: Axes, own: Sequence[Group]) -> None:
    lines = [(group, method, held) for group in own for method, held in group.held.items()]
    for position, (_, _, held) in enumerate(lines):
        left = 0.0
        for kind, colour in KIND_COLOURS.items():
            amount = held.peak(kind) / GIGABYTE
            panel.barh(position, amount, 0.72, left, color=colour, linewidth=0)
            left += amount
    labels = [f"{group.subject.depth} {short_title(method)}" for group, method, _ in lines]
    panel.set(ylim=(len(lines) - 0.4, -0.6), yticks=range(len(lines)))
    panel.set_yticklabels(labels, fontsize=7.5)
    panel.grid(visible=True, axis="x")
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
