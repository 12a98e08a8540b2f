"""Table 1: complexity per stage of every method, the published formulas beside what was measured.

The measurements are made by `reproduce.measures.complexity` and brought to the units of the formulas by
`reproduce.exhibits.measured`; here they are set beside the published text.
"""

from collections.abc import Sequence

import seaborn as sns
from matplotlib.figure import Figure as Drawing

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.exhibits import growth
from reproduce.exhibits.measured import FIRST_INNER, PUBLISHED_NAMES, Measured, Sweep, smallest, sweeps
from reproduce.published import Row
from reproduce.records.results import Results
from reproduce.show import plots
from reproduce.show.content import (
    KILOBYTE,
    MINUS,
    TIMES,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    method_name,
    missing,
    none,
    number,
    short_title,
    text,
)
from reproduce.show.content import published as published_entry


def section(results: Results) -> Section:
    """Scale by scale the formulas beside the measurements, their growth with J and k, then the bytes stage by stage."""
    rows = {row["method"]: row for row in published.read("table1_complexity")}
    found = sweeps(results)
    blocks: list[Block] = [_INTRODUCTION]
    folded: list[Block] = []
    for sweep in found:
        blocks += [_complexity_table(rows, sweep), *growth.figures(rows, sweep), _bytes_figure(sweep)]
        folded += [growth.table(sweep), _stages_table(sweep)]
    if not found:
        blocks.append(_complexity_table(rows, None))
    finding, coverage = _judgement(rows, [m for sweep in found for m in sweep.all])
    return Section(
        "table1",
        "Table 1: complexity per stage",
        blocks,
        [finding],
        coverage,
        folded,
        "Every J and k; bytes stage by stage",
    )


def _judgement(rows: dict[str, Row], found: Sequence[Measured]) -> tuple[Finding, str]:
    """The line of the summary, and the coverage."""
    compared = [(m, rows[PUBLISHED_NAMES[m.method]]) for m in found if m.method in PUBLISHED_NAMES]
    if not compared:
        return Finding("Table 1: nothing measured yet.", Tone.MISSING), "formulas; nothing measured yet"
    agreeing = sum(m.holds(row) for m, row in compared)
    stages, ks = sorted({m.stages for m, _ in compared}), sorted({m.cell.accumulation for m, _ in compared})
    finding = Finding(
        "Table 1: activations, stashed weights and FLOPs measured by execution follow the published formulas at "
        f"every inner stage in {agreeing} of {len(compared)} measurements "
        f"(J = {', '.join(map(str, stages))}; k = {', '.join(map(str, ks))}).",
        Tone.GOOD if agreeing == len(compared) else Tone.ALERT,
    )
    return (
        finding,
        f"measured on chains of equal stages: {agreeing} of {len(compared)} measurements follow the formulas",
    )


_INTRODUCTION = (
    "The formulas of the paper hold for a network of equal stages, so they are measured on one: a chain of "
    "reversible blocks of constant width between a stem and a head, executed until the pipeline is full. "
    "Activations are the bytes that a stage holds between two ticks for micro-batches whose backward is still to "
    "come; FG is the full autograd graph of one stage. Where a value depends on the stage, the first inner stage is "
    "shown, which holds most. Measured seconds are those of that stage alone on the machine that Provenance names, "
    "with whatever else ran there; a forward and a backward are divided by the same stage's forward. Table 1 counts a "
    "backward as two forwards; how long it takes depends on kernels and on the size of the stage."
)


def _complexity_table(rows: dict[str, Row], sweep: Sweep | None) -> Table:
    found = sweep.reference if sweep else []
    columns = [
        Column("k", numeric=False),
        Column("method", numeric=False),
        Column("formula", group="activations"),
        Column("measured", group="activations"),
        Column("formula", group="weights"),
        Column("stashed", group="weights", hint="copies of the stage's weights, besides the current ones"),
        Column("formula", group="communication"),
        Column("up", group="communication", hint="activations of one stream"),
        Column("down", group="communication", hint="activations of one stream"),
        Column("formula", group="FLOPs"),
        Column("measured", group="FLOPs"),
        Column("formula", group="time per batch"),
        Column("units", group="time per batch", hint="forwards of one stage; its forward and backward side by side"),
        Column("ticks", group="time per batch"),
        Column("measured", group="time per batch", hint="seconds of the first inner stage, in forwards of it"),
    ]
    if not found:
        body = [_complexity_row(method, rows.get(PUBLISHED_NAMES.get(method, "")), None) for method in methods.ALL]
    else:
        body = [_complexity_row(m.method, rows.get(PUBLISHED_NAMES.get(m.method, "")), m) for m in found]
    return Table(
        key=f"table1-{sweep.scale}" if sweep else "table1",
        caption=_caption(found),
        columns=columns,
        rows=body,
        notes=(
            "Activations and weights are those of the first inner stage (j = 2 in the formulas, which count from "
            "1). Weights: where nothing is stashed the formula's 1 is the weights themselves; copies are whole, "
            f"⌈2(J{MINUS}j)/k⌉.",
            "Communication in activations of one stream. The formula's 1 is for a network with one stream. This "
            "network has two, so that 2 go up and 2 gradients come down; where inputs are handed down for "
            "reconstruction 4 come down, as published.",
            "Time in forwards of one stage. The head reconstructs nothing, so that reversible backpropagation takes "
            f"4J {MINUS} 1. Approximate inputs (not in the paper's table) inverts with the current weights and "
            "differentiates with stashed ones: two evaluations. Measured time: J times forward and backward where one "
            "micro-batch passes at a time, else the slower of the two, since Table 1 has a worker for each.",
        ),
        grouped=True,
    )


def _complexity_row(method: Method, row: Row | None, m: Measured | None) -> list[Entry]:
    def formula_of(column: str) -> Entry:
        if row is None:
            return none("not in the paper's table")
        shown = row[column].replace("*", "\N{NARROW NO-BREAK SPACE}").replace("-", MINUS)
        return published_entry(shown, row.mark, value=row[column])

    if m is None:
        heading, values = "not measured", [missing("not run")] * 8
    else:
        name, _ = m.activation_unit
        amount = m.activations(FIRST_INNER)
        heading = f"k = {m.cell.accumulation}"
        values = [
            Entry(
                f"{amount:g} {name}" if amount else "0",
                m.activation_bytes(FIRST_INNER),
                Tone.OURS,
                f"{m.activation_bytes(FIRST_INNER):,} bytes",
            ),
            number(m.stashed_copies(FIRST_INNER), 0),
            number(m.streams_sent("up"), 0),
            number(m.streams_sent("down"), 0),
            Entry(
                f"{m.flops:g}J",
                m.flops,
                Tone.OURS,
                f"{m.result['stage_flops']:,.0f} FLOPs for a micro-batch at one stage",
            ),
            _units(m),
            number(m.result["ticks_per_micro_batch"], 0),
            _measured_time(m),
        ]
    activations, copies, up, down, flops, units, ticks, time = values
    return [
        text(heading),
        method_name(method),
        formula_of("activation_storage"),
        activations,
        formula_of("parameter_storage"),
        copies,
        formula_of("communication_volume"),
        up,
        down,
        formula_of("flops"),
        flops,
        formula_of("mean_time_per_batch"),
        units,
        ticks,
        time,
    ]


def _measured_time(m: Measured) -> Entry:
    if m.time is None:
        return missing("not measured")
    forward = m.result["seconds"]["forward"]
    return number(m.time, 1, hint=f"backward {m.backward_time:.2f} forwards; a forward {1e3 * forward:.3g} ms")


def _units(m: Measured) -> Entry:
    in_turn = m.result["units_in_turn"]
    return number(m.result["units_overlapped"], 0, hint=f"{in_turn} if a stage does one thing after another")


def _stages_table(sweep: Sweep) -> Table:
    kinds = {"inputs": "inputs", "graph": "graph", "stashed_weights": "stashed weights"}
    columns = [
        Column("method", numeric=False),
        Column("stage j"),
        *(Column(name, group="bytes held between ticks") for name in kinds.values()),
        *(Column(name, group="bytes") for name in ("parameters", "message up", "message down")),
    ]
    body = [
        [
            text(f"{m.method.title}, k = {m.cell.accumulation}"),
            number(stage, 0, tone=Tone.PLAIN),
            *(number(m.row(stage)[kind], 0) for kind in (*kinds, "parameters", "message_up", "message_down")),
        ]
        for m in sweep.reference
        for stage in m.inner
    ]
    caption = f"Measured bytes of every inner stage (j from 0), J = {sweep.reference_stages}, scale “{sweep.scale}”."
    return Table(key=f"table1-stages-{sweep.scale}", caption=caption, columns=columns, rows=body, grouped=True)


def _caption(found: Sequence[Measured]) -> str:
    if not found:
        return "Complexity per stage: published formulas; nothing has been measured yet."
    networks = sorted({(m.stages, m.cell.width, m.cell.image_size, m.cell.batch_size, m.cell.scale) for m in found})
    described = "; ".join(
        f"J = {j}, {width} channels a stream, {size}{TIMES}{size} pixels, batch {batch}, scale “{scale}”"
        for j, width, size, batch, scale in networks
    )
    return f"Complexity per stage: published formulas and measurements of executed steps ({described})."


def _bytes_figure(sweep: Sweep) -> Figure:
    """What each stage holds between ticks, as stacked bars, for the smallest k."""
    own = smallest(sweep.reference)
    k, key = own[0].cell.accumulation, f"bytes-{sweep.scale}"
    kinds = {
        "inputs": ("inputs", "#56b4e9"),
        "graph": ("graph", "#0072b2"),
        "stashed_weights": ("stashed weights", "#e69f00"),
    }
    totals = {m.method: sum(m.row(j)[kind] for j in range(m.stages) for kind in kinds) for m in own}
    title = f"Bytes held for backwards to come, stage by stage, k = {k}"
    description = "One panel for each method, one bar for each stage. All stages together: " + ", ".join(
        f"{method.title} {total:,} bytes" for method, total in totals.items()
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 4.0), layout="constrained")
        panels = drawing.subplots(2, 3, sharex=True, sharey=True).flat
        for panel, m in zip(panels, own, strict=False):
            stages = list(range(m.stages))
            bottom = [0.0] * m.stages
            for kind, (label, colour) in kinds.items():
                heights = [m.row(j)[kind] / KILOBYTE for j in stages]
                panel.bar(stages, heights, bottom=bottom, color=colour, label=label, width=0.72)
                bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
            panel.set(title=short_title(m.method), xticks=stages, xlabel="stage j", ylabel="kB")
            panel.tick_params(axis="x", length=0)
            panel.label_outer()
        sns.despine(drawing)
        handles, labels = drawing.axes[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=len(kinds))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    caption = (
        f"{title}, scale “{sweep.scale}”. Same network for all methods; one axis for all panels. Stage 0 is the stem, "
        "the last stage the head. 1 kB = 10³ bytes."
    )
    return Figure(key, title, description, svg, caption)
