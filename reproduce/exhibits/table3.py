"""Table 3: memory of RevNet-50 under the four buffer configurations (arXiv 2406.02052, ImageNet, batch 64, k = 1).

The published values are not measured but computed by a rule (`reproduce.modelling.buffer_rules`). Memory held by the
engine is therefore compared with that rule for the same network, images and batch. No value is scaled up to a larger
batch, because parameters do not grow with it.
"""

from collections.abc import Iterator
from typing import Any

from petra_core import methods
from reproduce import published as published_tables
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, run_sets, text_of
from reproduce.grids.plans.table3 import ACCUMULATION, BATCH
from reproduce.modelling.buffer_rules import CONSISTENT_RULE, PUBLISHED_RULE, by_kind, held, with_rules
from reproduce.presentation import facets
from reproduce.presentation.compare import DONE, NOT_RUN, agreement
from reproduce.presentation.content import GIGABYTE, MEGABYTE, Entry, Finding, Role, missing, short_title
from reproduce.presentation.tables import amount, difference, entry, method, published_value, table, words
from reproduce.records.frames import Frames, RunSet

BY_RULE, CONSISTENT, HELD = PUBLISHED_RULE.title, CONSISTENT_RULE.title, "measured, MB"


def _count_held(run: Any) -> float | Entry:
    """Return the held memory of the kinds that the rules count, or the state of an unfinished run."""
    return run.counted if run.status == DONE else missing(run.state, run.detail)


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the published values next to both rules and the memory held at their setting."""
    measured_sets = run_sets(frames, "table3")
    runs = with_rules(held(measured_sets[0], GIGABYTE).query("dataset == 'imagenet' and model == 'revnet50'"), GIGABYTE)
    rows: list[Any] = list(zip(runs.itertuples(), published_tables.read("table3_memory"), strict=True))

    def deviation(row: Any) -> float:
        return float(round(row[0].published_rule, 1) - row[1].number("memory_gb"))

    reproduced = sum(
        not deviation(row) and f"{row[0].published_rule_saved:.1f}" == row[1]["saving_percent"] for row in rows
    )
    petra, stated = rows[-1]
    yield Sentence(
        text_of("table3", "sentence", reproduced=reproduced, rows=len(rows), petra=petra, stated=stated),
        Role.GOOD if reproduced == len(rows) else Role.ALERT,
    )
    yield table(
        key="table3",
        caption=text_of("table3", "published", batch=BATCH, k=ACCUMULATION),
        rows=rows,
        fields=[
            method(lambda row: methods.by_name(row[0].method)),
            words("input buffer", lambda row: row[1]["input_buffer"]),
            words("parameter buffer", lambda row: row[1]["parameter_buffer"]),
            entry("GB", lambda row: published_value(row[1], "memory_gb"), group="published"),
            entry("saving, %", lambda row: published_value(row[1], "saving_percent"), group="published"),
            amount("GB", lambda row: row[0].published_rule, 2, group=BY_RULE),
            amount("saving, %", lambda row: row[0].published_rule_saved, 1, group=BY_RULE),
            amount("GB", lambda row: row[0].consistent_rule, 2, group=CONSISTENT),
            amount("saving, %", lambda row: row[0].consistent_rule_saved, 1, group=CONSISTENT),
            amount("of the rules", lambda row: _count_held(row[0]), 2, group="measured, GB"),
            amount("all", lambda row: row[0].held, 2, group="measured, GB"),
        ],
    )
    if done := [name for run_set in measured_sets for name in run_set.done["cell"]]:
        equal, role = agreement(frames.parts(done), "peak", "predicted")
        yield Finding(text_of("table3", "agreement", measurements=len(done), equal=equal), role)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the memory held, as a figure and a table, and what PETRA saves on the largest network."""
    runs = held(run_set, MEGABYTE)
    runs = with_rules(runs[runs["subject"].isin(runs.loc[runs["status"] != NOT_RUN, "subject"])], MEGABYTE)
    bars = by_kind(run_set.frames, runs[runs["batch_size"] == runs.groupby("dataset")["batch_size"].transform("min")])
    titles = bars["method"].map(lambda name: short_title(methods.by_name(name)))
    yield facets.facet(
        bars.assign(bar=bars["model"].str.removeprefix("revnet") + " " + titles, gigabytes=bars["value"] / GIGABYTE),
        [facets.stack()],
        key=f"held-{run_set.key}",
        caption=text_of("table3", "figure", run_set=run_set, k=ACCUMULATION),
        x=facets.Axis("bar", label="GB, all stages"),
        y="gigabytes",
        hue="kind",
        looks=facets.KIND_LOOKS,
        panels=facets.Panels(
            col="images", share=(False, False), height=0.7 + 0.26 * bars.groupby("images")["cell"].nunique().max()
        ),
        legend="area",
    )
    yield table(
        key=f"table3-held-{run_set.key}",
        caption=text_of("table3", "held", run_set=run_set, k=ACCUMULATION),
        rows=runs.itertuples(),
        fields=[
            words("network", lambda run: run.subject, heading=True),
            method(lambda run: methods.by_name(run.method)),
            amount(BY_RULE, lambda run: run.published_rule, 1, group="by formula, MB"),
            amount(CONSISTENT, lambda run: run.consistent_rule, 1, group="by formula, MB"),
            amount("of the rules", _count_held, 1, group=HELD, hint="of the kinds they count"),
            difference("− the published rule", lambda run: run.counted - run.published_rule, 1, group=HELD),
            amount("all", lambda run: run.held, 1, group=HELD),
            amount("at one moment", lambda run: run.at_once, 1, group=HELD, hint="each stage at its fullest"),
            amount("process", lambda run: run.process, 1, group=HELD, hint="by how much its memory grew at most"),
            amount("saving, %", lambda run: run.held_saved, 1, group=HELD, hint="against delayed gradients"),
        ],
        notes=notes("table3", "held"),
    )
    pairs = runs[runs["method"] == methods.PETRA.name].dropna(subset=["held_saved"])
    for run in pairs.nlargest(1, "held").to_dict("records"):
        yield Finding(
            text_of("table3", "saving", run=run, run_set=run_set, gigabytes=run["held"] * MEGABYTE / GIGABYTE)
        )


EXHIBIT = declare("table3", each, whole)
