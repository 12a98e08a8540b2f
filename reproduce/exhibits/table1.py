"""Table 1: complexity per stage of every method, published formulas compared with measurements.

The formulas describe the growth with J and k more than single values, so they are drawn over both. The table and the
drawing show the first inner stage (j = 2 in the formulas), which holds most. The findings cover all stages.
"""

from collections.abc import Callable, Iterator

from petra_core.methods import Method
from reproduce.cells.networks import title_of
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, run_sets, text_of
from reproduce.grids.plans.table1 import ACCUMULATIONS, REFERENCE_DEPTH
from reproduce.modelling.complexity import FORMULAS, Measured, formulas, read_measured
from reproduce.presentation import content, facets
from reproduce.presentation.compare import NOT_RUN, agreement
from reproduce.presentation.content import MEGABYTE, MINUS, NARROW_SPACE, Column, Entry, Finding, Role, missing, none
from reproduce.presentation.tables import Field, method, number, table
from reproduce.records.frames import Frames, RunSet

REFERENCE = {"J": REFERENCE_DEPTH + 2, "k": ACCUMULATIONS[0]}  # fixed while the other one varies
TABULATED = ACCUMULATIONS[:2]  # k whose measurements are tabulated; all are drawn
#: Panels: quantity, title, unit.
DRAWN = (
    ("activations", "activations, MB", MEGABYTE),
    ("copies", "stashed weights, copies", 1),
    ("flops", "FLOPs, forwards", 1),
    ("time", "time a batch, forwards", 1),
)


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the formulas next to the measurements of the largest scale, and the result of all measurements.

    The predicted memory is computed by separate code: `petra_core.ledger` counts tensors as they are kept and released,
    and `petra_core.prediction.memory` computes from shapes. Their agreement is therefore evidence for both.
    """
    measured = [m for run_set in run_sets(frames, "table1") for m in read_measured(run_set.finished)]
    chosen = [m for m in measured if m.cell.scale == measured[0].cell.scale]
    chosen = [m for m in chosen if m.place["J"] == REFERENCE["J"] and m.place["k"] in TABULATED]
    cells = [m.cell for m in chosen]
    settings = [f" ({title_of(c)}, {c.image_size} pixels, batch {c.batch_size}, scale “{c.scale}”)" for c in cells]
    yield table(
        key="table1",
        caption=text_of("table1", "formulas", reference=REFERENCE, setting="".join(settings[:1])),
        rows=[(m.method, m) for m in chosen] or [(m, None) for m in formulas()],
        fields=[
            method(lambda row: row[0]),
            number("k", lambda row: row[1] and row[1].place["k"]),
            _beside("activations", "activations", measured=_activations),
            _beside("weights", "copies", stashed=_value("copies")),
            _beside("communication", "down", up=_value("up"), down=_value("down")),
            _beside("FLOPs", "flops", measured=_flops),
            _beside("time per batch", "time", executed=_value("executed"), measured=_value("time", 1)),
        ],
        notes=notes("table1", "formulas"),
    )
    if measured:
        compared = [m for m in measured if m.method in formulas()]
        holding = sum(m.holds for m in compared)
        yield Sentence(
            text_of("table1", "sentence", holding=holding, compared=len(compared)),
            Role.GOOD if holding == len(compared) else Role.ALERT,
        )
        equal, role = agreement(frames.parts(m.cell.name for m in measured), "predicted", "measured")
        yield Finding(f"The memory predicted from shapes is the engine's own count in {equal}.", role)


def _beside(group: str, name: str, **columns: Callable[[Measured], Entry]) -> Field:
    """Return columns of the published formula and the measured values."""

    def entries(row: tuple[Method, Measured | None]) -> list[Entry]:
        line, m = formulas().get(row[0]), row[1]
        formula = line[FORMULAS[name]] if line else ""
        text = formula.replace("*", NARROW_SPACE).replace("-", MINUS)
        return [
            content.published_entry(text, line.mark, value=formula) if line else none("not in the paper's table"),
            *(entry_of(m) if m else missing(NOT_RUN) for entry_of in columns.values()),
        ]

    return Field([Column(column, group=group) for column in ("formula", *columns)], entries)


def _value(name: str, digits: int = 0) -> Callable[[Measured], Entry]:
    return lambda m: content.number(m.values()[name], digits)


def _flops(m: Measured) -> Entry:
    return Entry(f"{m.values()['flops'] / m.place['J']:g}J", role=Role.OURS)


def _activations(m: Measured) -> Entry:
    held, (unit, name) = m.values()["activations"], (m.graph, "FG") if m.method.keeps_graph else (m.stream, "inputs")
    return Entry(f"{held / unit:g} {name}" if held else "0", held, Role.OURS, f"{held:,} bytes")


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the growth with J and k."""
    measured = read_measured(run_set.finished)
    places = {over: {m.place[over] for m in measured} for over in REFERENCE}
    yield facets.facet(
        [
            {"over": over, "place": m.place[over], "title": title, "timed": key == "time", "method": m.method.name}
            | {"measured": m.values()[key] / unit}
            | {"formula": m.formula(key) / unit if m.method in formulas() else None}
            for over, kept in (("J", "k"), ("k", "J"))
            for key, title, unit in DRAWN
            for m in measured
            if m.place[kept] == REFERENCE[kept] and len(places[over]) > 1
        ],
        [
            facets.with_column("formula", facets.line(width=1.2)),
            facets.dots(),
            facets.where(facets.from_zero, timed=False),
            facets.where(facets.logarithmic, timed=True),
        ],
        key=f"growth-{run_set.key}",
        caption=text_of("table1", "figure", reference=REFERENCE, run_set=run_set),
        x=facets.Axis("place", log=True, ticks=sorted(ACCUMULATIONS)),
        y="measured",
        panels=facets.Panels(
            row="over", col="title", titles=lambda over, title: f"{title}, over {over}", share=(False, False)
        ),
        legend="both",
    )


EXHIBIT = declare("table1", each, whole)
