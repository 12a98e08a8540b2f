"""Table 3: memory of RevNet-50 under the four buffer configurations (arXiv 2406.02052, ImageNet, batch 64, k = 1).

The published values are no measurement but sums by a rule (`reproduce.modelling.buffer_rules`). So what the engine held
stands beside that rule at the same network, images and batch; nothing is scaled up, for parameters do not grow with it.
"""

from collections.abc import Iterator
from typing import Any

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown, sheets
from reproduce.grids.plans.table3 import ACCUMULATION, BATCH, METHODS
from reproduce.modelling.buffer_rules import (
    CONSISTENT_RULE,
    PUBLISHED_RULE,
    BufferRule,
    configuration_of,
    memory,
    revnet_sizes,
)
from reproduce.records.frames import Frame, Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import DONE, NOT_RUN
from reproduce.show.content import GIGABYTE, MEGABYTE, Entry, Finding, Tone, missing, number, short_title
from reproduce.show.facets import KIND_LOOKS, facet
from reproduce.show.tables import amount, difference, method, published, published_value, table, words

#: Kinds of tensors whose bytes are summed: what the rules count, graphs, what is neither, all.
SUMS = {
    "counted": ("parameters", "buffers", "inputs", "stashed_weights"),
    "graph": ("graph",),
    "working": ("messages", "gradients", "optimizer"),
    "held": KINDS,
}
INTRODUCTION = (
    "The published table is an estimate by formula: every stage holds its parameters, its BatchNorm statistics, one "
    "input, and what it buffers once more for every micro-batch of delay. The published digits follow from the "
    "networks built here only if inputs are counted in two ways (both streams at non-reversible stages, one elsewhere, "
    "the images in the stem's buffer in the first two rows alone); counted consistently (both streams everywhere, no "
    "buffer of images), the first rows are larger, and so is the saving. Really held is what the engine counted on "
    "random images once every buffer was full, each kind of tensors at its largest moment."
)


def _held(sheet: Sheet) -> Frame:
    """The runs, methods in the paper's order, with bytes of all stages together by the rules and as held (else NaN).

    Columns `…_saved` are percent less than under delayed gradients with the same network, images and batch.
    """
    place = sheet.runs["method"].map([m.name for m in METHODS].index)
    runs = sheet.runs.assign(place=place).sort_values(["dataset", "model", "batch_size", "place"])
    titles = runs["dataset"].map(lambda name: catalogue.by_name(name).title)
    runs["images"] = titles + ", batch " + runs["batch_size"].astype(str)
    runs["subject"] = runs["network"].str.removesuffix(", width 64") + ", " + runs["images"]
    runs["published_rule"] = [_by_rule(run, PUBLISHED_RULE) for run in runs.itertuples()]
    runs["consistent_rule"] = [_by_rule(run, CONSISTENT_RULE) for run in runs.itertuples()]
    parts = sheet.frames.parts(runs["cell"])
    for of, name, kinds in (*(("peak", *sums) for sums in SUMS.items()), ("predicted", "predicted", KINDS)):
        chosen = parts[(parts["of"] == of) & parts["kind"].isin(kinds)]
        runs[name] = runs["cell"].map(chosen.groupby("cell")["value"].sum()).astype(float)
    delayed = runs[runs["method"] == METHODS[0].name].groupby("subject")
    for name in ("published_rule", "consistent_rule", "counted", "held"):
        runs[f"{name}_saved"] = 100 * (1 - runs[name] / runs["subject"].map(delayed[name].first()))
    return runs


def _by_rule(run: Any, rule: BufferRule) -> int:
    sizes = revnet_sizes(int(run.model.removeprefix("revnet")), run.dataset, run.batch_size, run.width)
    return memory(sizes, configuration_of(methods.by_name(run.method)), rule, run.k)


def _counted(run: Any, unit: float) -> float | Entry:
    """What was held of what the rules count, or how far the run is."""
    return run.counted / unit if run.status == DONE else missing(run.state, run.detail)


def whole(frames: Frames) -> Iterator[Shown]:
    """The published values beside both rules and what was held at their setting."""
    every = list(sheets(frames, "table3"))
    runs = _held(every[0]).query("dataset == 'imagenet' and model == 'revnet50'")
    ours: dict[str, Any] = {str(run.method): run for run in runs.itertuples()}
    rows = [(ours[m.name], row) for m, row in zip(METHODS, published_tables.read("table3_memory"), strict=True)]
    reproduced = sum(
        (f"{run.published_rule / GIGABYTE:.1f}", f"{run.published_rule_saved:.1f}")
        == (row["memory_gb"], row["saving_percent"])
        for run, row in rows
    )
    petra, stated = rows[-1]
    said = (
        f"{reproduced} of {len(rows)} published rows follow to the digit from a rule; counted consistently, PETRA "
        f"saves {petra.consistent_rule_saved:.1f} % instead of {stated['saving_percent']} %."
    )
    yield Sentence(said)
    yield Finding(f"Table 3: {said}", Tone.GOOD if reproduced == len(rows) else Tone.ALERT)
    yield table(
        key="table3",
        caption=f"Memory of RevNet-50, ImageNet, batch {BATCH}, k = {ACCUMULATION}, float32: published, by formula, "
        "and as held by the engine. 1 GB = 10⁹ bytes.",
        rows=rows,
        fields=[
            method("method", lambda row: methods.by_name(row[0].method)),
            words("input buffer", lambda row: row[1]["input_buffer"]),
            words("parameter buffer", lambda row: row[1]["parameter_buffer"]),
            published("GB", lambda row: published_value(row[1], "memory_gb"), group="published"),
            published("saving, %", lambda row: published_value(row[1], "saving_percent"), group="published"),
            amount("GB", lambda row: row[0].published_rule / GIGABYTE, 2, group=PUBLISHED_RULE.title),
            difference(
                "difference",
                lambda row: round(row[0].published_rule / GIGABYTE, 1) - row[1].number("memory_gb"),
                1,
                group=PUBLISHED_RULE.title,
                hint="after rounding to the published digits",
            ),
            amount("saving, %", lambda row: row[0].published_rule_saved, 1, group=PUBLISHED_RULE.title),
            amount("GB", lambda row: row[0].consistent_rule / GIGABYTE, 2, group=CONSISTENT_RULE.title),
            amount("saving, %", lambda row: row[0].consistent_rule_saved, 1, group=CONSISTENT_RULE.title),
            amount("of the rules, GB", lambda row: _counted(row[0], GIGABYTE), 2, group="really held"),
            amount("all, GB", lambda row: row[0].held / GIGABYTE, 2, group="really held"),
        ],
    )
    if done := [name for sheet in every for name in sheet.done["cell"]]:
        parts = frames.parts(done).pivot(index=["cell", "stage", "kind"], columns="of", values="value")
        equal = int((parts["peak"] == parts["predicted"]).sum())
        yield Finding(
            f"Table 3: {len(done)} measurements of really held buffers, in which {equal} of {len(parts)} numbers "
            "(stage, kind) equal the prediction from shapes.",
            Tone.GOOD if equal == len(parts) else Tone.ALERT,
        )


def each(sheet: Sheet) -> Iterator[Shown]:
    """What was held, drawn and in numbers, and what PETRA saves at the largest."""
    runs = _held(sheet)
    runs = runs[runs["subject"].isin(runs.loc[runs["status"] != NOT_RUN, "subject"])]
    done = runs[runs["status"] == DONE]
    titles = done["method"].map(lambda name: short_title(methods.by_name(name)))
    bars = done.assign(bar=done["model"].str.removeprefix("revnet") + " " + titles)
    bars = bars[bars["batch_size"] == bars.groupby("dataset")["batch_size"].transform("min")]
    parts = sheet.frames.parts(bars["cell"]).merge(bars[["cell", "images", "bar"]], on="cell")
    if not done.empty:
        yield facet(
            parts[parts["of"] == "peak"].assign(gigabytes=parts["value"] / GIGABYTE),
            [facets.stack()],
            key=f"held-{sheet.key}",
            title="Memory as held, by kind",
            caption=f"Memory as held, by kind, scale “{sheet.scale}”, k = {ACCUMULATION}, of RevNets by their depths. "
            "Every panel has an axis of its own. 1 GB = 10⁹ bytes.",
            x="bar",
            y="gigabytes",
            hue="kind",
            looks=KIND_LOOKS,
            col="images",
            xlabel="GB, all stages",
            share=(False, False),
            height=0.7 + 0.26 * bars["images"].value_counts().max(),
            legend="area",
        )

    def growth(run: Any) -> Entry | None:
        if run.status != DONE:
            return None
        process = sheet.frames.by_name[run.cell].result["process"]
        return number(process["peak"] / MEGABYTE, 1, hint=process["source"]) if process else missing("not known")

    held = "really held, MB"
    to_rule, to_delayed = "of the rules less the published rule", "of all, against delayed gradients at this batch"
    yield table(
        key=f"table3-held-{sheet.key}",
        caption=f"Memory as held, all stages, scale “{sheet.scale}”, float32, k = {ACCUMULATION}, beside the rules at "
        "the same batch. 1 MB = 10⁶ bytes.",
        rows=runs.itertuples(),
        fields=[
            words("network", lambda run: run.subject),
            method("method", lambda run: methods.by_name(run.method)),
            amount("published rule", lambda run: run.published_rule / MEGABYTE, 1, group="by formula, MB"),
            amount("consistent rule", lambda run: run.consistent_rule / MEGABYTE, 1, group="by formula, MB"),
            amount("of the rules", lambda run: _counted(run, MEGABYTE), 1, group=held, hint="of the kinds they count"),
            difference(
                "difference", lambda run: (run.counted - run.published_rule) / MEGABYTE, 1, group=held, hint=to_rule
            ),
            amount("graphs", lambda run: run.graph / MEGABYTE, 1, group=held),
            amount("other", lambda run: run.working / MEGABYTE, 1, group=held, hint="messages, gradients, momentum"),
            amount("all", lambda run: run.held / MEGABYTE, 1, group=held),
            amount("saving, %", lambda run: run.held_saved, 1, group=held, hint=to_delayed),
            difference("less predicted", lambda run: (run.held - run.predicted) / MEGABYTE, 1, group=held, exact=True),
            words("growth", growth, group="process, MB", hint="at its peak, by the system's word"),
        ],
        notes=(
            "The difference to the published rule is what the engine does otherwise: the stem keeps its images under "
            "every method, a reversible stage that reconstructs its input keeps none (it waits as a message), the head "
            "keeps both streams, and BatchNorm has a counter of batches. Delayed gradients keep whole graphs, of which "
            "the rule counts the inputs.",
        ),
        grouped=True,
    )
    pairs = runs[runs["method"] == methods.PETRA.name].dropna(subset=["held_saved"])
    for run in pairs.nlargest(1, "held").to_dict("records"):
        yield Finding(
            f"{run['subject']} (scale “{sheet.scale}”): PETRA held {run['held'] / GIGABYTE:.2f} GB, "
            f"{run['held_saved']:.1f} % less than delayed gradients; of what the published rule counts, "
            f"{run['counted_saved']:.1f} % less."
        )


EXHIBIT = Exhibit("table3", "Table 3: memory of the buffers", INTRODUCTION, each, whole)
