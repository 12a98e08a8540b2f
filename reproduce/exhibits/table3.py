"""Table 3: memory of RevNet-50 under the four buffer configurations (arXiv 2406.02052, ImageNet, batch 64, k = 1).

The published values are sums by a rule (`reproduce.modelling.buffer_rules`). Here they stand beside what the rule gives
for the networks of this suite, beside a rule that counts consistently, and beside what the engine really holds.

The engine holds more than the rules count: the graphs that delayed gradients keep (the rule has their inputs only),
messages that wait, gradients and momentum. So the kinds that the rules count are summed on their own, and the rest
stands beside them. Numbers of different batches are never brought to one another by scaling, for parameters do not grow
with the batch: what is compared is of one network, one shape of images and one batch, the rules evaluated at that.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import Coverage, Exhibit, Folded, Sentence, Shown, sheets
from reproduce.grids.plans.table3 import ACCUMULATION, BATCH, METHODS, MODELS
from reproduce.modelling.buffer_rules import (
    CONFIGURATIONS,
    CONSISTENT_RULE,
    PUBLISHED_RULE,
    BufferRule,
    StageSize,
    memory,
    revnet_sizes,
    saving,
)
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import DONE, NOT_RUN
from reproduce.show.content import GIGABYTE, MEGABYTE, Entry, Figure, Finding, Table, Tone, missing, number, short_title
from reproduce.show.facets import KIND_LOOKS, facet
from reproduce.show.tables import Field, amount, amounts, difference, method, published, published_value, table, words
from reproduce.show.tables import number as setting

DATASETS = ("imagenet", "imagenet32", "cifar10")
CONFIGURATION = {method.name: row for method, row in zip(METHODS, CONFIGURATIONS, strict=True)}
#: What the rules add up, and what else is held beside graphs.
COUNTED, WORKING = ["parameters", "buffers", "inputs", "stashed_weights"], ["messages", "gradients", "optimizer"]
INTRODUCTION = (
    "The published table is an estimate by formula: every stage holds its parameters, its BatchNorm statistics and one "
    "input, and, where they are buffered, one input and one copy of the parameters for every micro-batch of delay. The "
    "published digits follow from the networks built here, but only if inputs are counted in two ways: both streams at "
    "non-reversible stages, one stream at reversible ones and at the head, and the images in the stem's buffer in the "
    "first two rows only. Counted consistently (both streams everywhere, no buffer of images), the memory of the first "
    "rows is larger, and so is the saving."
)
HELD = (
    "Below the buffers were really held: the engine ran on random images (bytes depend on shapes, not on what is seen) "
    "until every buffer had reached its size, and counted each stage's tensors by what they are for, each kind at its "
    "largest moment. Every number stands beside the rules at its own batch, and none is scaled to another one. The "
    "growth of the process is the system's word, which knows nothing of the engine's count: a tensor that two stages "
    "share counts at both in the engine and once in the process; what kernels and the allocator take for themselves "
    "counts in the process alone. Delayed gradients keep whole graphs here, as PipeDream does; the rule counts the "
    "inputs of those."
)


def agreement(frames: Frames, plan: str) -> Iterator[Finding]:
    """How many of the numbers of a plan's measurements are as predicted from shapes."""
    done = [name for sheet in sheets(frames, plan) for name in sheet.done["cell"]]
    if done:
        parts = frames.parts(done).pivot(index=["cell", "stage", "kind"], columns="of", values="value")
        equal, total = int((parts["peak"] == parts["predicted"]).sum()), len(parts)
        yield Finding(
            f"Table {plan[-1]}: {len(done)} measurements of really held buffers, in which {equal} of {total} numbers "
            "(stage, kind) equal the prediction from shapes.",
            Tone.GOOD if equal == total else Tone.ALERT,
        )


def by_kind(
    of: Callable[[Any], Mapping[str, float]], unit: float, digits: int, *, group: str, kinds: Sequence[str] = KINDS
) -> list[Field]:
    """Columns of the bytes of some kinds and of all together; `of`: bytes of a row by kind."""
    names = {kind: kind.replace("_", " ") for kind in kinds}
    return [
        amounts(names, lambda row: {kind: of(row)[kind] / unit for kind in kinds}, digits, group=group),
        amount("all", lambda row: sum(of(row)[kind] for kind in KINDS) / unit, digits, group=group),
    ]


def subject(run: Any) -> str:
    """What must be equal for two measurements of a scale to be compared: network, images and batch."""
    network = run.network.removesuffix(", width 64")
    return f"{network}, {catalogue.by_name(run.dataset).title}, batch {run.batch_size}"


def _measured(sheet: Sheet) -> list[Any]:
    """The runs as the paper's tables go, with bytes of all stages together, which are NaN until a run is done.

    Beside columns of runs there are the kinds, of these `counted` (by the rules), `working` (neither that nor graphs),
    `held` (all), and `off`: `held` less its prediction.
    """
    places = {value: place for place, value in enumerate((*DATASETS, *sorted(MODELS, reverse=True), *CONFIGURATION))}
    parts = sheet.parts()
    peak, predicted = (parts[parts["of"] == of] for of in ("peak", "predicted"))
    by_kind = peak.pivot_table(index="cell", columns="kind", values="value", aggfunc="sum")
    runs = sheet.runs.drop(columns="optimizer").join(by_kind.reindex(columns=list(KINDS)), on="cell")
    for name, kinds in (("counted", COUNTED), ("working", WORKING), ("held", list(KINDS))):
        runs[name] = runs[kinds].sum(axis=1, skipna=False)
    runs["off"] = runs["held"] - runs["cell"].map(predicted.groupby("cell")["value"].sum())
    order = ["dataset", "model", "batch_size", "method"]
    return list(runs.sort_values(order, key=lambda column: column.map(places).fillna(column)).itertuples())


# --- beside the published values


def whole(frames: Frames) -> Iterator[Shown]:
    """The published table, both rules and what was held at its setting; the other depths by the rules."""
    rows = dict(zip(CONFIGURATIONS, published_tables.read("table3_memory"), strict=True))
    sizes = revnet_sizes(50)
    every = list(sheets(frames, "table3"))
    papers = {
        CONFIGURATION[run.method]: run
        for run in _measured(every[0])
        if (run.dataset, run.model, run.batch_size) == ("imagenet", "revnet50", BATCH)
    }
    gigabytes, saved = _by_rule(PUBLISHED_RULE)
    reproduced = sum(
        f"{memory(sizes, c, PUBLISHED_RULE) / GIGABYTE:.1f}" == row["memory_gb"]
        and f"{saving(sizes, c, PUBLISHED_RULE):.1f}" == row["saving_percent"]
        for c, row in rows.items()
    )
    consistently = (
        f"counted consistently, PETRA saves {saving(sizes, CONFIGURATIONS[-1], CONSISTENT_RULE):.1f} % instead of "
        f"{rows[CONFIGURATIONS[-1]]['saving_percent']} %."
    )
    yield Coverage(f"computed from the networks: {reproduced} of {len(rows)} rows to the digit")
    yield Sentence(f"{reproduced} of {len(rows)} published rows follow to the digit from a rule; {consistently}")
    yield Finding(
        f"Table 3: {reproduced} of {len(rows)} rows of the published memory of RevNet-50 follow to the digit from the "
        f"published rule; {consistently}",
        Tone.GOOD if reproduced == len(rows) else Tone.ALERT,
    )
    yield table(
        key="table3",
        caption=f"Memory of RevNet-50, ImageNet, batch {BATCH}, k = {ACCUMULATION}, float32: published, by formula, "
        "and as held by the engine at this very setting. 1 GB = 10⁹ bytes.",
        rows=[(sizes, configuration) for configuration in CONFIGURATIONS],
        fields=[
            *BUFFERS,
            published("GB", lambda row: published_value(rows[row[1]], "memory_gb"), group="published"),
            published("saving, %", lambda row: published_value(rows[row[1]], "saving_percent"), group="published"),
            gigabytes,
            difference(
                "difference",
                lambda row: (
                    round(memory(row[0], row[1], PUBLISHED_RULE) / GIGABYTE, 1) - rows[row[1]].number("memory_gb")
                ),
                1,
                group=PUBLISHED_RULE.title,
                hint="after rounding to the published digits",
            ),
            saved,
            *_by_rule(CONSISTENT_RULE),
            amount("of the rules, GB", lambda row: _of_rules(papers[row[1]], GIGABYTE), 2, group="really held"),
            amount("all, GB", lambda row: papers[row[1]].held / GIGABYTE, 2, group="really held"),
        ],
        notes=(
            "Input buffer “no” and parameter buffer “no” is PETRA; “yes” and “yes” holds what delayed gradients hold. "
            "Difference: published rule, rounded to one decimal, less the published value. What is held at other "
            "batches stands below, beside the rules at those batches: it is not scaled up to this one.",
        ),
    )
    yield from agreement(frames, "table3")
    if any(sheet.begun for sheet in every):
        yield HELD
    yield Folded(
        table(
            key="table3-depths",
            caption=f"The same for all three RevNets (ImageNet, batch {BATCH}, k = {ACCUMULATION}); not in the paper.",
            rows=[(revnet_sizes(depth), c, depth) for depth in (18, 34, 50) for c in CONFIGURATIONS],
            fields=[
                words("model", lambda row: f"RevNet-{row[2]}, J = {len(row[0])}"),
                *BUFFERS,
                *_by_rule(PUBLISHED_RULE),
                *_by_rule(CONSISTENT_RULE),
            ],
            grouped=True,
        )
    )


#: Of rows that begin with the sizes of stages and a configuration.
BUFFERS = (
    words("input buffer", lambda row: "yes" if row[1].input_buffer else "no"),
    words("parameter buffer", lambda row: "yes" if row[1].parameter_buffer else "no"),
)


def _by_rule(rule: BufferRule) -> list[Field]:
    """Likewise."""
    return [
        amount("GB", lambda row: memory(row[0], row[1], rule) / GIGABYTE, 2, group=rule.title),
        amount("saving, %", lambda row: saving(row[0], row[1], rule), 1, group=rule.title),
    ]


def _of_rules(run: Any, unit: float) -> float | Entry:
    """What was held of what the rules count, or how far the run is."""
    return float(run.counted) / unit if run.status == DONE else missing(run.state, run.detail)


# --- scale by scale


def each(sheet: Sheet) -> Iterator[Shown]:
    """What was held, drawn and in numbers, the stages of the largest network, and what PETRA saves."""
    every = _measured(sheet)
    begun = {subject(run) for run in every if run.status != NOT_RUN}
    runs = [run for run in every if subject(run) in begun]
    done = [run for run in runs if run.status == DONE]
    whole = {subject(run): run for run in done if run.method == METHODS[0].name}
    if done:
        yield _bars(sheet, done)
    yield _held(sheet, runs, whole)
    if done:
        yield Folded(_stages(sheet, done))
    if complete := [own for name, own in whole.items() if Counter(map(subject, done))[name] == len(METHODS)]:
        largest = max(complete, key=lambda run: run.held)
        petra = next(r for r in done if (subject(r), r.method) == (subject(largest), methods.PETRA.name))
        yield Finding(
            f"{subject(petra)} (scale “{sheet.scale}”): PETRA held {petra.held / GIGABYTE:.2f} GB where delayed "
            f"gradients held {largest.held / GIGABYTE:.2f} GB, {100 * (1 - petra.held / largest.held):.1f} % less; of "
            f"what the published rule counts, {100 * (1 - petra.counted / largest.counted):.1f} % less."
        )


def _bars(sheet: Sheet, done: Sequence[Any]) -> Figure:
    """By kind, of each network the smallest batch."""
    smallest = {(run.dataset, run.model): run.batch_size for run in reversed(done)}
    shown = [run for run in done if run.batch_size == smallest[run.dataset, run.model]]
    bars = [
        {
            "panel": f"{catalogue.by_name(run.dataset).title}, batch {run.batch_size}",
            "bar": f"{run.model.removeprefix('revnet')} {short_title(methods.by_name(run.method))}",
            "kind": kind,
            "gigabytes": getattr(run, kind) / GIGABYTE,
        }
        for run in shown
        for kind in KINDS
    ]
    most = max(sum(run.dataset == dataset for run in shown) for dataset in DATASETS)
    return facet(
        bars,
        [facets.stack()],
        key=f"held-{sheet.key}",
        title="Memory as held, by kind",
        caption=f"Memory as held, by kind, each at its largest moment, scale “{sheet.scale}”, k = {ACCUMULATION}, of "
        "RevNets by their depths. Every panel has an axis of its own. 1 GB = 10⁹ bytes.",
        x="bar",
        y="gigabytes",
        hue="kind",
        looks=KIND_LOOKS,
        col="panel",
        xlabel="GB, all stages",
        share=(False, False),
        height=0.7 + 0.26 * most,
        legend="area",
    )


def _held(sheet: Sheet, runs: Sequence[Any], whole: Mapping[str, Any]) -> Table:
    """Every configuration of every network and shape."""

    def sizes(run: Any) -> Sequence[StageSize]:
        return revnet_sizes(int(run.model.removeprefix("revnet")), run.dataset, run.batch_size, run.width)

    def by_rule(run: Any, rule: BufferRule) -> int:
        return memory(sizes(run), CONFIGURATION[run.method], rule, run.k)

    def growth(run: Any) -> Entry | None:
        if run.status != DONE:
            return None
        process = sheet.frames.by_name[run.cell].result["process"]
        return number(process["peak"] / MEGABYTE, 1, hint=process["source"]) if process else missing("not known")

    def saved(run: Any) -> float | None:
        return 100 * (1 - run.held / whole[subject(run)].held) if subject(run) in whole else None

    formula, held, off = "by formula, MB", "really held, MB", "prediction, MB"
    to_rule, to_prediction = "to the published rule", "what was held less what was predicted"
    to_delayed = "of all, against delayed gradients where they were held at this batch"
    return table(
        key=f"table3-held-{sheet.key}",
        caption=f"Memory as held by the engine, all stages, scale “{sheet.scale}”, float32, k = {ACCUMULATION}, beside "
        "the rules at the same batch. 1 MB = 10⁶ bytes.",
        rows=runs,
        fields=[
            words("network", lambda run: f"{subject(run)}, J = {len(sizes(run))}"),
            method("method", lambda run: methods.by_name(run.method)),
            amount("published rule", lambda run: by_rule(run, PUBLISHED_RULE) / MEGABYTE, 1, group=formula),
            amount("consistent rule", lambda run: by_rule(run, CONSISTENT_RULE) / MEGABYTE, 1, group=formula),
            amount("of the rules", lambda run: _of_rules(run, MEGABYTE), 1, group=held, hint="of the kinds they count"),
            difference(
                "difference",
                lambda run: (run.counted - by_rule(run, PUBLISHED_RULE)) / MEGABYTE,
                1,
                group=held,
                hint=to_rule,
            ),
            amount("graphs", lambda run: run.graph / MEGABYTE, 1, group=held),
            amount("other", lambda run: run.working / MEGABYTE, 1, group=held, hint="messages, gradients, momentum"),
            amount("all", lambda run: run.held / MEGABYTE, 1, group=held),
            amount("saving, %", saved, 1, group=held, hint=to_delayed),
            difference("difference", lambda run: run.off / MEGABYTE, 1, group=off, hint=to_prediction, exact=True),
            words("growth", growth, group="process, MB", hint="at its peak, by the system's word"),
        ],
        notes=(
            "Of the rules: weights, BatchNorm statistics, inputs kept and stashed weights. Other: messages, gradients, "
            "momentum. The difference to the published rule is what the engine does otherwise: the stem keeps its "
            "images under every method, a reversible stage that reconstructs its input keeps none (it waits as a "
            "message), the head keeps both streams, and BatchNorm has a counter of batches.",
            "Approximate inputs is the row without input buffer and with parameter buffer, DSP the other way round.",
        ),
        grouped=True,
    )


def _stages(sheet: Sheet, done: Sequence[Any]) -> Table:
    """Of the first network every stage."""
    own = [run for run in done if subject(run) == subject(done[0])]
    parts = sheet.parts()
    peak = parts[parts["of"] == "peak"].pivot(index=["cell", "stage"], columns="kind", values="value")
    return table(
        key=f"table3-stages-{sheet.key}",
        caption=f"Every stage of {subject(done[0])}, as held.",
        rows=[(run, stage, held) for run in own for stage, held in peak.loc[run.cell].iterrows()],
        fields=[
            words("network and method", lambda row: f"{subject(row[0])}, {methods.by_name(row[0].method).title}"),
            setting("stage j", lambda row: row[1]),
            *by_kind(lambda row: row[2], MEGABYTE, 2, group="peak, MB"),
        ],
        grouped=True,
    )


EXHIBIT = Exhibit(
    "table3",
    "Table 3: memory of the buffers",
    INTRODUCTION,
    each,
    whole,
    folded="The other depths by formula; every stage as measured",
)
