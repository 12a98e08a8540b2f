"""Table 1: complexity per stage of every method, the published formulas beside what was measured.

Measurements are brought to the units of the formulas by `reproduce.modelling.complexity`. The formulas are about the
growth with J and k more than about any one value, so they are drawn over both, with the measurements as dots. Tabulated
and drawn is the first inner stage (the formulas' j = 2), which holds most; the findings are of all.
"""

from collections.abc import Callable, Iterator
from typing import Any

from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown, sheets
from reproduce.grids.plans.table1 import ACCUMULATIONS, REFERENCE_DEPTH
from reproduce.modelling.complexity import FORMULAS, Measured, formulas, measured
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import NOT_RUN
from reproduce.show.content import KILOBYTE, MINUS, NARROW_SPACE, TIMES, Entry, Finding, Tone, none
from reproduce.show.content import number as number_entry
from reproduce.show.content import published as published_entry
from reproduce.show.facets import facet, only
from reproduce.show.tables import Field, amount, entry, method, number, table

INTRODUCTION = (
    "The formulas hold for a network of equal stages, so they are measured on one: a chain of reversible blocks of "
    "constant width between a stem and a head, executed until the pipeline is full. Activations are the bytes that a "
    "stage holds between two ticks for micro-batches whose backward is still to come; FG is the full autograd graph of "
    "one stage. Measured time is of the first inner stage alone, over its own forward; the table counts a backward as "
    "two forwards, and how long it takes depends on kernels and on the size of the stage."
)
REFERENCE = {"J": REFERENCE_DEPTH + 2, "k": ACCUMULATIONS[0]}  # kept while the other grows
TABULATED = ACCUMULATIONS[:2]  # k whose measurements are tabulated; all are drawn
#: Panels: what is drawn, its title, its unit.
DRAWN = (
    ("activations", "activations, kB", KILOBYTE),
    ("copies", "stashed weights, copies", 1),
    ("flops", "FLOPs, forwards", 1),
    ("time", "time a batch, forwards", 1),
)


def whole(frames: Frames) -> Iterator[Shown]:
    """The formulas beside the measurements of the largest scale, and what all measurements say to them.

    The memory that is predicted from shapes is another code than the count of it: `petra_core.ledger` counts tensors as
    they are kept and let go, `petra_core.prediction.memory` computes. So it means something that they agree.
    """
    found = [m for sheet in sheets(frames, "table1") for m in _measured(sheet)]
    shown = [m for m in found if m.cell.scale == found[0].cell.scale]
    shown = [m for m in shown if m.place["J"] == REFERENCE["J"] and m.place["k"] in TABULATED]
    setting = "nothing has been measured yet"
    if shown:
        cell = shown[0].cell
        setting = (
            f"J = {REFERENCE['J']}, {cell.width} channels a stream, {cell.image_size}{TIMES}{cell.image_size} pixels, "
            f"batch {cell.batch_size}, scale “{cell.scale}”"
        )
    yield table(
        key="table1",
        caption="Complexity per stage: published formulas and, of the first inner stage (j = 2), measurements of "
        f"executed steps ({setting}).",
        rows=[(m.method, m) for m in shown] or [(m, None) for m in formulas()],
        fields=[
            method("method", lambda row: row[0]),
            number("k", lambda row: row[1] and row[1].place["k"]),
            _formula("activations", "activations"),
            _ours("activations", "measured", _activations),
            _formula("weights", "copies"),
            _ours("weights", "stashed", lambda m: m.values()["copies"], hint="besides the current ones"),
            _formula("communication", "down"),
            _ours("communication", "up", lambda m: m.values()["up"]),
            _ours("communication", "down", lambda m: m.values()["down"]),
            _formula("FLOPs", "flops"),
            _ours("FLOPs", "measured", lambda m: Entry(f"{m.values()['flops'] / m.place['J']:g}J", tone=Tone.OURS)),
            _formula("time per batch", "time"),
            _ours("time per batch", "executed", lambda m: m.values()["executed"], hint="by the schedule"),
            _ours("time per batch", "measured", lambda m: number_entry(m.values()["time"], 1)),
        ],
        notes=(
            "Where no weights are stashed the formula's 1 is the weights themselves; copies are whole, "
            f"⌈2(J{MINUS}j)/k⌉. Communication in activations of one stream: the formula's 1 is for a network with one, "
            "this has two, so that 2 go up and 2 gradients come down, or 4 with inputs for reconstruction.",
            "Time in forwards of one stage. The head reconstructs nothing, so that reversible backpropagation executes "
            f"4J {MINUS} 1. Measured: J times forward and backward where one micro-batch passes at a time, else the "
            "slower of the two, since Table 1 has a worker for each.",
        ),
    )
    if not found:
        return
    compared = [m for m in found if m.method in formulas()]
    holding = sum(m.holds for m in compared)
    places = "; ".join(f"{n} = {', '.join(map(str, sorted({m.place[n] for m in compared})))}" for n in REFERENCE)
    said = (
        "Activations, stashed weights and FLOPs follow the published formulas at every inner stage in "
        f"{holding} of {len(compared)} measurements"
    )
    yield Sentence(f"{said}.")
    yield Finding(f"Table 1: {said} ({places}).", Tone.GOOD if holding == len(compared) else Tone.ALERT)
    parts = frames.parts(m.cell.name for m in found)
    counts = parts[parts["of"] != "held"].pivot(index=["cell", "stage", "kind"], columns="of", values="value")
    equal = int((counts["predicted"] == counts["measured"]).sum())
    yield Finding(
        f"Table 1: the prediction of memory from shapes equals the engine's own count in {equal} of {len(counts)} "
        "numbers (method, J, k, stage, kind).",
        Tone.GOOD if equal == len(counts) else Tone.ALERT,
    )


def _measured(sheet: Sheet) -> list[Measured]:
    return measured(sheet.frames.by_name[name] for name in sheet.done["cell"])


def _formula(group: str, name: str) -> Field:
    def shown(row: tuple[Method, Measured | None]) -> Entry:
        line = formulas().get(row[0])
        if line is None:
            return none("not in the paper's table; it evaluates twice, to invert and with the stashed weights")
        text = line[FORMULAS[name]]
        return published_entry(text.replace("*", NARROW_SPACE).replace("-", MINUS), line.mark, value=text)

    return entry("formula", shown, group=group)


def _ours(group: str, name: str, of: Callable[[Measured], float | Entry], *, hint: str = "") -> Field:
    return amount(name, lambda row: row[1] and of(row[1]), 0, group=group, hint=hint, without=NOT_RUN)


def _activations(m: Measured) -> Entry:
    held, (unit, name) = m.values()["activations"], (m.graph, "FG") if m.method.keeps_graph else (m.stream, "inputs")
    return Entry(f"{held / unit:g} {name}" if held else "0", held, Tone.OURS, f"{held:,} bytes")


def each(sheet: Sheet) -> Iterator[Shown]:
    """The growth with J and k."""
    points = list(_points(_measured(sheet)))
    if points:
        yield facet(
            points,
            [
                facets.also("formula", facets.line(width=1.2)),
                facets.dots(),
                only(facets.from_zero(), timed=False),
                only(facets.logarithmic(), timed=True),
            ],
            key=f"growth-{sheet.key}",
            title="Growth with J and k",
            caption=f"The first inner stage over J (k = {REFERENCE['k']}) and over k (J = {REFERENCE['J']}), scale "
            f"“{sheet.scale}”. Line: published formula (of stashed copies without rounding up; it has no approximate "
            "inputs); dot: measured. Curves that coincide hide one another.",
            x="place",
            y="measured",
            row="over",
            col="title",
            titles=lambda over, title: f"{title}, over {over}",
            xlog=True,
            share=(False, False),
            legend="both",
        )


def _points(found: list[Measured]) -> Iterator[dict[str, Any]]:
    """What was measured where J or k was varied, and the formulas at every J or k between."""
    for over, kept in (("J", "k"), ("k", "J")):
        own = [m for m in found if m.place[kept] == REFERENCE[kept]]
        places = sorted({m.place[over] for m in own})
        for key, title, unit in DRAWN if len(places) > 1 else ():
            for m in own:
                row = {"over": over, "title": title, "timed": key == "time", "method": m.method.name}
                yield {**row, "place": m.place[over], "measured": m.values()[key] / unit}
                for place in range(places[0], places[-1] + 1):
                    if m.method in formulas() and m.place[over] == places[0]:
                        yield {**row, "place": place, "formula": m.formula(key, **{over: place}) / unit}


EXHIBIT = Exhibit("table1", "Table 1: complexity per stage", INTRODUCTION, each, whole)
