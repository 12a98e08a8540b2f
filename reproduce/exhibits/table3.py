"""Table 3: memory of RevNet-50 under the four buffer configurations (arXiv 2406.02052, ImageNet, batch 64, k = 1).

The published values are sums by a rule (`reproduce.modelling.buffer_rules`). Here they stand beside what the rule gives
for the networks of this suite, beside a rule that counts consistently, and beside what the engine really holds
(`reproduce.exhibits.table3_held`).
"""

from collections.abc import Sequence

from reproduce import published
from reproduce.exhibits import table3_held
from reproduce.exhibits.held import Group, Subject, groups
from reproduce.grids.plans.table3 import ACCUMULATION, BATCH, METHODS
from reproduce.modelling.buffer_rules import (
    CONFIGURATIONS,
    CONSISTENT_RULE,
    PUBLISHED_RULE,
    StageSize,
    memory,
    revnet_sizes,
    saving,
)
from reproduce.records.results import Results
from reproduce.show.content import (
    GIGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    number,
    signed,
    text,
)
from reproduce.show.content import published as published_entry

DEPTHS = (18, 34, 50)


def section(results: Results) -> Section:
    """The table of the paper beside both rules and the measurement, all that was measured, and the other depths."""
    rows = published.read("table3_memory")
    sizes = revnet_sizes(50)
    reproduced = sum(
        f"{memory(sizes, c, PUBLISHED_RULE) / GIGABYTE:.1f}" == row["memory_gb"]
        and f"{saving(sizes, c, PUBLISHED_RULE):.1f}" == row["saving_percent"]
        for c, row in zip(CONFIGURATIONS, rows, strict=True)
    )
    consistent = saving(sizes, CONFIGURATIONS[-1], CONSISTENT_RULE)
    found = groups(results)
    begun = [group for group in found if group.begun]
    scales = list(dict.fromkeys(group.subject.scale for group in reversed(begun)))  # the largest first
    by_scale = {scale: [group for group in begun if group.subject.scale == scale] for scale in scales}
    blocks: list[Block] = [_INTRODUCTION, _published_table(rows, sizes, _at_the_papers_setting(found))]
    if begun:
        blocks.append(table3_held.INTRODUCTION)
    for scale, own in by_scale.items():
        blocks += [*table3_held.figures(scale, own), table3_held.table(scale, own)]
    done, there = sum(len(group.held) for group in found), sum(len(group.runs) for group in found)
    return Section(
        key="table3",
        title="Table 3: memory of the buffers",
        blocks=blocks,
        findings=(
            Finding(
                f"Table 3: {reproduced} of {len(rows)} rows of the published memory of RevNet-50 follow to the digit "
                f"from the published rule; counted consistently, PETRA saves {consistent:.1f} % instead of "
                f"{rows[-1]['saving_percent']} %.",
                Tone.GOOD if reproduced == len(rows) else Tone.ALERT,
            ),
            *table3_held.findings(begun),
        ),
        coverage=f"computed from the networks: {reproduced} of {len(rows)} rows to the digit; "
        + (f"really held: {done} of {there} cells ({', '.join(scales)})" if done else "not measured"),
        folded=[_depths_table(), *(table3_held.stages_table(scale, own) for scale, own in by_scale.items())],
        folded_title="The other depths by formula; every stage as measured",
    )


_INTRODUCTION = (
    "The published table is an estimate by formula: every stage holds its parameters, its BatchNorm statistics and one "
    "input, and, where they are buffered, one input and one copy of the parameters for every micro-batch of delay. The "
    "published digits follow from the networks built here, but only if inputs are counted in two ways: both streams at "
    "non-reversible stages, one stream at reversible ones and at the head, and the images in the stem's buffer in the "
    "first two rows only. Counted consistently (both streams everywhere, no buffer of images), the memory of the first "
    "rows is larger, and so is the saving."
)


def _at_the_papers_setting(found: Sequence[Group]) -> Group | None:
    wanted = Subject("paper", "imagenet", "revnet50", 64, BATCH, ACCUMULATION)
    return next((group for group in found if group.subject == wanted), None)


def _published_table(rows: Sequence[published.Row], sizes: Sequence[StageSize], measured: Group | None) -> Table:
    columns = [
        Column("input buffer", numeric=False),
        Column("parameter buffer", numeric=False),
        Column("GB", group="published"),
        Column("saving, %", group="published"),
        *(Column(name, group=PUBLISHED_RULE.title) for name in ("GB", "difference", "saving, %")),
        *(Column(name, group=CONSISTENT_RULE.title) for name in ("GB", "saving, %")),
        *(Column(name, group="really held") for name in ("of the rules, GB", "all, GB")),
    ]
    body = []
    for configuration, method, row in zip(CONFIGURATIONS, METHODS, rows, strict=True):
        gigabytes = memory(sizes, configuration, PUBLISHED_RULE) / GIGABYTE
        rounded = round(gigabytes, 1)
        body.append(
            [
                _yes(configuration.input_buffer),
                _yes(configuration.parameter_buffer),
                published_entry(row["memory_gb"], row.mark, value=row.number("memory_gb")),
                published_entry(row["saving_percent"], row.mark, value=row.number("saving_percent")),
                number(gigabytes, 2),
                signed(rounded - row.number("memory_gb"), 1, hint="after rounding to the published digits"),
                number(saving(sizes, configuration, PUBLISHED_RULE), 1),
                number(memory(sizes, configuration, CONSISTENT_RULE) / GIGABYTE, 2),
                number(saving(sizes, configuration, CONSISTENT_RULE), 1),
                *table3_held.gigabytes(measured, method),
            ]
        )
    return Table(
        key="table3",
        caption=(
            f"Memory of RevNet-50, ImageNet, batch {BATCH}, k = {ACCUMULATION}, float32: published, by formula, and as "
            "held by the engine at this very setting. 1 GB = 10⁹ bytes."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Input buffer “no” and parameter buffer “no” is PETRA; “yes” and “yes” holds what delayed gradients hold. "
            "Difference: published rule, rounded to one decimal, less the published value. What is held at other "
            "batches stands below, beside the rules at those batches: it is not scaled up to this one.",
        ),
    )


def _depths_table() -> Table:
    columns = [
        Column("model", numeric=False),
        Column("input buffer", numeric=False),
        Column("parameter buffer", numeric=False),
        *(Column(name, group=rule.title) for rule in (PUBLISHED_RULE, CONSISTENT_RULE) for name in ("GB", "saving, %")),
    ]
    body = []
    for depth in DEPTHS:
        sizes = revnet_sizes(depth)
        for configuration in CONFIGURATIONS:
            values = [
                entry
                for rule in (PUBLISHED_RULE, CONSISTENT_RULE)
                for entry in (
                    number(memory(sizes, configuration, rule) / GIGABYTE, 2),
                    number(saving(sizes, configuration, rule), 1),
                )
            ]
            head = text(f"RevNet-{depth}, J = {len(sizes)}")
            body.append([head, _yes(configuration.input_buffer), _yes(configuration.parameter_buffer), *values])
    return Table(
        key="table3-depths",
        caption=f"The same for all three RevNets (ImageNet, batch {BATCH}, k = {ACCUMULATION}); not in the paper.",
        columns=columns,
        rows=body,
        grouped=True,
    )


def _yes(value: bool) -> Entry:
    return text("yes" if value else "no")
