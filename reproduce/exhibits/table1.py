"""Table 1: complexity per stage of every method, the published formulas beside what was measured.

The measurements are made by `reproduce.measures.complexity` and brought to the units of the formulas by
`reproduce.modelling.complexity`. The formulas are about the growth with J and k more than about any one value, so they
are also drawn over both, as lines, with the measurements as dots. Tabulated and drawn is the first inner stage (the
formulas' j = 2), which holds most.
"""

from collections.abc import Iterator, Sequence

from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Folded, Sentence, Shown, sheets
from reproduce.grids.plans.table1 import ACCUMULATIONS, REFERENCE_DEPTH
from reproduce.modelling.complexity import FORMULAS, Measured, formulas, measured
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.content import (
    KILOBYTE,
    MINUS,
    NARROW_SPACE,
    TIMES,
    Entry,
    Figure,
    Finding,
    Table,
    Tone,
    none,
    published,
)
from reproduce.show.content import number as number_entry
from reproduce.show.facets import facet, only
from reproduce.show.tables import Field, amount, entry, method, number, table, words

INTRODUCTION = (
    "The formulas of the paper hold for a network of equal stages, so they are measured on one: a chain of "
    "reversible blocks of constant width between a stem and a head, executed until the pipeline is full. "
    "Activations are the bytes that a stage holds between two ticks for micro-batches whose backward is still to "
    "come; FG is the full autograd graph of one stage. Where a value depends on the stage, the first inner stage is "
    "shown, which holds most. Measured seconds are those of that stage alone on the machine that Provenance names, "
    "with whatever else ran there; a forward and a backward are divided by the same stage's forward. Table 1 counts a "
    "backward as two forwards; how long it takes depends on kernels and on the size of the stage."
)
REFERENCE = {"J": REFERENCE_DEPTH + 2, "k": ACCUMULATIONS[0]}  # kept while the other grows
TABULATED = ACCUMULATIONS[:2]  # k whose measurements are tabulated in full; all are drawn and listed
HELD = ("inputs", "graph", "stashed_weights")
#: What grows or does not: panels, and columns of the list.
TITLES = {
    "activations": "activations held, kB",
    "copies": "stashed copies of the weights",
    "down": "message down (hollow: up), streams",
    "flops": "FLOPs of all stages, forwards",
    "executed": "time per batch, executed, forwards",
    "time": "time per batch, measured, forwards",
}
UNITS = {"activations": KILOBYTE}  # in which they are drawn


#: By what a formula is about the name of what is measured of it.
PUBLISHED = {
    "activations": "activations",
    "weights": "copies",
    "communication": "down",
    "FLOPs": "flops",
    "time per batch": "time",
}


def whole(frames: Frames) -> Iterator[Shown]:
    """What all measurements say to the formulas, and to the memory that is predicted from shapes.

    The latter are two codes: `petra_core.ledger` counts tensors as they are kept and let go,
    `petra_core.prediction.memory` computes from the formulas. So it means something that they agree.
    """
    found = [m for sheet in sheets(frames, EXHIBIT.key) for m in _measured(sheet)]
    if not found:
        yield table(
            key="table1",
            caption="Complexity per stage: published formulas; nothing has been measured yet.",
            rows=list(formulas()),
            fields=[method("method", lambda m: m), *(_formula(group, name) for group, name in PUBLISHED.items())],
        )
        return
    compared = [m for m in found if m.method in formulas()]
    agreeing = sum(m.holds for m in compared)
    places = "; ".join(f"{n} = {', '.join(map(str, sorted({m.place[n] for m in compared})))}" for n in REFERENCE)
    yield Sentence(
        "Activations, stashed weights and FLOPs follow the published formulas at every inner stage in "
        f"{agreeing} of {len(compared)} measurements."
    )
    yield Finding(
        "Table 1: activations, stashed weights and FLOPs measured by execution follow the published formulas at "
        f"every inner stage in {agreeing} of {len(compared)} measurements ({places}).",
        Tone.GOOD if agreeing == len(compared) else Tone.ALERT,
    )
    parts = frames.parts(m.cell.name for m in found)
    counts = parts[parts["of"] != "held"].pivot(index=["cell", "stage", "kind"], columns="of", values="value")
    equal = int((counts["predicted"] == counts["measured"]).sum())
    yield Finding(
        f"Table 1: the prediction of memory from shapes equals the engine's own count in {equal} of {len(counts)} "
        "numbers (method, J, k, stage, kind).",
        Tone.GOOD if equal == len(counts) else Tone.ALERT,
    )


def each(sheet: Sheet) -> Iterator[Shown]:
    """The formulas beside the measurements, their growth with J and k, then the bytes stage by stage."""
    found = _measured(sheet)
    reference = [m for m in found if m.place["J"] == REFERENCE["J"]]
    tabulated = [m for m in reference if m.place["k"] in TABULATED] or reference
    if tabulated:
        yield _complexity(sheet, tabulated)
        yield Folded(_stages(sheet, tabulated))
    yield from _growth(sheet, [m for m in found if m.place["k"] == REFERENCE["k"]], "J", "k")
    yield from _growth(sheet, reference, "k", "J")
    if tabulated:
        yield _bytes(sheet, [m for m in tabulated if m.place["k"] == tabulated[0].place["k"]])
    if found:
        yield Folded(_listed(sheet, found))


def _measured(sheet: Sheet) -> list[Measured]:
    return measured(sheet.frames.by_name[name] for name in sheet.done["cell"])


def _formula(group: str, name: str) -> Field:
    """A column of published formulas, of methods or of their measurements."""

    def shown(row: Measured | Method) -> Entry:
        line = formulas().get(row.method if isinstance(row, Measured) else row)
        if line is None:
            return none("not in the paper's table")
        text = line[FORMULAS[name]]
        return published(text.replace("*", NARROW_SPACE).replace("-", MINUS), line.mark, value=text)

    return entry("formula", shown, group=group)


def _complexity(sheet: Sheet, tabulated: Sequence[Measured]) -> Table:
    weights, communication, time = "weights", "communication", "time per batch"
    stream = "activations of one stream"
    copies = "copies of the stage's weights, besides the current ones"
    units = "forwards of one stage; its forward and backward side by side"
    cell = tabulated[0].cell
    return table(
        key=f"table1-{sheet.key}",
        caption="Complexity per stage: published formulas and measurements of executed steps "
        f"(J = {REFERENCE['J']}, {cell.width} channels a stream, {cell.image_size}{TIMES}{cell.image_size} pixels, "
        f"batch {cell.batch_size}, scale “{sheet.scale}”).",
        rows=tabulated,
        fields=[
            words("k", lambda m: f"k = {m.place['k']}"),
            method("method", lambda m: m.method),
            _formula("activations", PUBLISHED["activations"]),
            entry("measured", _activations, group="activations"),
            _formula(weights, PUBLISHED[weights]),
            amount("stashed", lambda m: m.values()["copies"], 0, group=weights, hint=copies),
            _formula(communication, PUBLISHED[communication]),
            amount("up", lambda m: m.values()["up"], 0, group=communication, hint=stream),
            amount("down", lambda m: m.values()["down"], 0, group=communication, hint=stream),
            _formula("FLOPs", PUBLISHED["FLOPs"]),
            entry("measured", _flops, group="FLOPs"),
            _formula(time, PUBLISHED[time]),
            entry("units", _executed, group=time, hint=units),
            amount("ticks", lambda m: m.result["ticks_per_micro_batch"], 0, group=time),
            entry("measured", _seconds, group=time, hint="seconds of the first inner stage, in forwards of it"),
        ],
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


def _activations(m: Measured) -> Entry:
    held, (unit, name) = m.values()["activations"], (m.graph, "FG") if m.method.keeps_graph else (m.stream, "inputs")
    return Entry(f"{held / unit:g} {name}" if held else "0", held, Tone.OURS, f"{held:,} bytes")


def _flops(m: Measured) -> Entry:
    forwards, flops = m.values()["flops"] / m.place["J"], m.result["stage_flops"]
    return Entry(f"{forwards:g}J", forwards, Tone.OURS, f"{flops:,.0f} FLOPs for a micro-batch at one stage")


def _executed(m: Measured) -> Entry:
    in_turn = f"{m.result['units_in_turn']} if a stage does one thing after another"
    return number_entry(m.values()["executed"], 0, hint=in_turn)


def _seconds(m: Measured) -> Entry:
    values, forward = m.values(), 1e3 * m.result["seconds"]["forward"]
    hint = f"backward {values['backward']:.2f} forwards; a forward {forward:.3g} ms"
    return number_entry(values["time"], 1, hint=hint)


def _growth(sheet: Sheet, own: Sequence[Measured], name: str, fixed: str) -> Iterator[Figure]:
    """Growth with J or k, where more than one was measured."""
    places = sorted({m.place[name] for m in own})
    if len(places) < 2:
        return
    title = f"Table 1 as a function of {name}, {fixed} = {REFERENCE[fixed]}"
    yield facet(
        _points(own, name, range(places[0], places[-1] + 1)),
        [
            only(facets.line(width=1.2), of="formula"),
            only(facets.dots(), of="measured"),
            only(facets.dots(hollow=True, size=6.5), of="up"),
            only(facets.from_zero(), logarithmic=False),
            only(facets.logarithmic(), logarithmic=True),
        ],
        key=f"growth-{name}-{sheet.key}",
        title=title,
        caption=f"{title}, scale “{sheet.scale}”, first inner stage. Line: published formula (of stashed copies "
        "without rounding up); dot: measured. Approximate inputs is not in the paper's table and has no line. Curves "
        "that coincide hide one another; the table below has every value.",
        x=name,
        y="value",
        col="title",
        wrap=3,
        xlabel=name,
        xlog=True,
        ticks=places,
        share=(False, False),
        legend="both",
    )


def _points(own: Sequence[Measured], name: str, between: Sequence[int]) -> Iterator[dict[str, object]]:
    """Rows of the figure: what was measured, and the formulas at every J or k between."""
    for key, title in TITLES.items():
        row = {"title": title, "logarithmic": FORMULAS[key] == "mean_time_per_batch"}
        for m in own:
            row["method"], at, unit = m.method.name, m.place[name], UNITS.get(key, 1)
            yield {**row, name: at, "of": "measured", "value": m.values()[key] / unit}
            if key == "down":
                yield {**row, name: at, "of": "up", "value": m.values()["up"]}
            if m.method in formulas() and at == between[0]:
                lines = {place: m.formula(key, **{name: place}) / unit for place in between}
                yield from ({**row, name: place, "of": "formula", "value": value} for place, value in lines.items())


def _bytes(sheet: Sheet, own: Sequence[Measured]) -> Figure:
    """What each stage holds between ticks."""
    parts = sheet.parts()
    parts = parts[parts["cell"].isin([m.cell.name for m in own]) & parts["kind"].isin(HELD) & (parts["of"] == "held")]
    title = f"Bytes held for backwards to come, stage by stage, k = {own[0].place['k']}"
    return facet(
        parts.assign(value=parts["value"] / KILOBYTE),
        [facets.stack(sideways=False)],
        key=f"bytes-{sheet.key}",
        title=title,
        caption=f"{title}, scale “{sheet.scale}”. Same network for all methods; one axis for all panels. Stage 0 is "
        "the stem, the last stage the head. 1 kB = 10³ bytes.",
        x="stage",
        y="value",
        hue="kind",
        looks=facets.KIND_LOOKS,
        col="method",
        wrap=3,
        titles=lambda _, name: facets.METHOD_LOOKS[name].label,
        xlabel="stage j",
        ylabel="kB",
        height=1.7,
        legend="area",
    )


def _listed(sheet: Sheet, found: Sequence[Measured]) -> Table:
    def value(name: str) -> Field:
        return amount(TITLES[name], lambda m: m.values()[name] / UNITS.get(name, 1), 2)

    return table(
        key=f"table1-growth-{sheet.key}",
        caption=f"Every measurement of the first inner stage, scale “{sheet.scale}”.",
        rows=found,
        fields=[
            number("J", lambda m: m.place["J"]),
            number("k", lambda m: m.place["k"]),
            method("method", lambda m: m.method),
            *map(value, TITLES),
        ],
    )


def _stages(sheet: Sheet, tabulated: Sequence[Measured]) -> Table:
    def bytes_of(kind: str, group: str) -> Field:
        return amount(kind.replace("_", " "), lambda row: row[0].result["rows"][row[1]][kind], 0, group=group)

    return table(
        key=f"table1-stages-{sheet.key}",
        caption=f"Measured bytes of every inner stage (j from 0), J = {REFERENCE['J']}, scale “{sheet.scale}”.",
        rows=[(m, stage) for m in tabulated for stage in m.inner],
        fields=[
            words("method", lambda row: f"{row[0].method.title}, k = {row[0].place['k']}"),
            number("stage j", lambda row: row[1]),
            *(bytes_of(kind, "bytes held between ticks") for kind in HELD),
            *(bytes_of(kind, "bytes") for kind in ("parameters", "message_up", "message_down")),
        ],
        grouped=True,
    )


EXHIBIT = Exhibit(
    "table1", "Table 1: complexity per stage", INTRODUCTION, each, whole, folded="Every J and k; bytes stage by stage"
)
