"""Where the memory goes: what the engine counted, beside what was foretold from shapes and the method alone.

The two come from different code: `petra_core.ledger` counts tensors as they are kept and let go,
`petra_core.prediction.memory` computes from Table 1's formulas. So it means something that they agree.
"""

from collections.abc import Sequence
from typing import Any

import seaborn as sns
from matplotlib.figure import Figure as Drawing

from petra_core.ledger import KINDS
from reproduce.exhibits.measured import Measured, Sweep, smallest, sweeps
from reproduce.records.results import Results
from reproduce.show import plots
from reproduce.show.content import (
    KILOBYTE,
    Block,
    Column,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    number,
    short_title,
    signed,
    text,
)


def section(results: Results) -> Section:
    """Bars for the smallest k; every number folded; scale by scale."""
    found = sweeps(results)
    if not found:
        return Section("memory", "Memory, predicted and measured", ["Nothing has been measured yet."])
    entries = [entry for sweep in found for m in sweep.all for entry in m.result["memory"]]
    equal = sum(entry["measured"] == entry["predicted"] for entry in entries)
    finding = Finding(
        f"Memory: the prediction from shapes equals the engine's own count in {equal} of {len(entries)} numbers "
        f"(method, J, k, stage, kind).",
        Tone.GOOD if equal == len(entries) else Tone.ALERT,
    )
    blocks: list[Block] = [_INTRODUCTION, *map(_figure, found)]
    return Section(
        "memory",
        "Memory, predicted and measured",
        blocks,
        [finding],
        folded=[_table(sweep) for sweep in found],
        folded_title="Every number",
    )


_INTRODUCTION = (
    "Bytes of tensors by what they are for, each kind at its largest moment, summed over the stages of the network "
    "of Table 1. Temporaries inside a single operation are in neither number."
)


def _sums(m: Measured, name: str) -> dict[str, int]:
    """Bytes by kind, summed over stages: `measured` or `predicted`."""
    entries: Sequence[dict[str, Any]] = m.result["memory"]
    return {kind: sum(entry[name] for entry in entries if entry["kind"] == kind) for kind in KINDS}


def _figure(sweep: Sweep) -> Figure:
    own = smallest(sweep.reference)
    key = f"memory-{sweep.scale}"
    title = f"Peak memory by kind, predicted and measured, k = {own[0].cell.accumulation}"
    description = "Two stacked bars for each method, the upper predicted, the lower measured. Measured: " + ", ".join(
        f"{m.method.title} {sum(_sums(m, 'measured').values()):,} bytes" for m in own
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 0.9 + 0.5 * len(own)), layout="constrained")
        panel = drawing.subplots()
        for row, m in enumerate(own):
            for offset, name in ((-0.2, "predicted"), (0.2, "measured")):
                left = 0.0
                for kind, amount in _sums(m, name).items():
                    width = amount / KILOBYTE
                    alpha = 0.55 if name == "predicted" else 1.0
                    panel.barh(
                        row + offset, width, 0.36, left, color=plots.KIND_COLOURS[kind], alpha=alpha, linewidth=0
                    )
                    left += width
                panel.annotate(f" {name}", (left, row + offset), va="center", fontsize=7.5, color=plots.QUIET)
        panel.set(
            ylim=(len(own) - 0.45, -0.55), yticks=range(len(own)), yticklabels=[short_title(m.method) for m in own]
        )
        panel.set(xlabel="kB, all stages")
        panel.margins(x=0.08)
        panel.grid(visible=True, axis="x")
        panel.grid(visible=False, axis="y")
        panel.tick_params(axis="y", length=0)
        sns.despine(drawing, left=True)
        handles = [
            panel.barh(0, 0, color=colour, label=kind.replace("_", " ")) for kind, colour in plots.KIND_COLOURS.items()
        ]
        drawing.legend(handles=handles, loc="outside lower center", ncols=len(KINDS))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    caption = f"{title}, scale “{sweep.scale}”. Network and batch as in Table 1, J = {own[0].stages}. 1 kB = 10³ bytes."
    return Figure(key, title, description, svg, caption)


def _table(sweep: Sweep) -> Table:
    columns = [Column("method", numeric=False), Column("kind", numeric=False)]
    columns += [Column(name) for name in ("predicted", "measured", "difference")]
    body = []
    for m in sweep.reference:
        predicted, counted = _sums(m, "predicted"), _sums(m, "measured")
        for kind in KINDS:
            difference = counted[kind] - predicted[kind]
            tone = Tone.ALERT if difference else Tone.OURS
            body.append(
                [
                    text(f"{m.method.title}, k = {m.cell.accumulation}"),
                    text(kind.replace("_", " ")),
                    number(predicted[kind], 0),
                    number(counted[kind], 0),
                    signed(difference, 0, tone=tone),
                ]
            )
    caption = (
        f"Peak bytes by kind, summed over stages, scale “{sweep.scale}”, J = {sweep.reference_stages}; the download "
        "has every stage of every measurement."
    )
    data = [
        {"method": m.method.name, "k": m.cell.accumulation, "stages": m.stages, **entry}
        for m in sweep.all
        for entry in m.result["memory"]
    ]
    return Table(key=f"memory-{sweep.scale}", caption=caption, columns=columns, rows=body, data=data, grouped=True)
