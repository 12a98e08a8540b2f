"""Table 1 as a function of J and of k: the published formulas as lines, the measurements as dots.

The formulas are about the growth with J and k more than about any one value, so they are drawn over both. Drawn and
measured is the first inner stage (the formulas' j = 2), which holds most.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from petra_core.methods import Method
from reproduce.exhibits.measured import FIRST_INNER, PUBLISHED_NAMES, Measured, Sweep
from reproduce.modelling import formula
from reproduce.published import Row
from reproduce.show import plots
from reproduce.show.content import (
    KILOBYTE,
    Column,
    Figure,
    Table,
    Tone,
    method_name,
    missing,
    number,
    short_title,
)

Values = Callable[[Measured], float | None]


@dataclass(frozen=True)
class Quantity:
    """One panel.

    Attributes:
        title: what is drawn, with its unit.
        column: of the published formulas.
        measured: value of a measurement.
        scale: from the formula's value to the panel's unit.
        logarithmic: the axis.

    """

    title: str
    column: str
    measured: Values
    scale: Callable[[Measured, float], float]
    logarithmic: bool = False


def _activation_scale(m: Measured, value: float) -> float:
    return value * m.activation_unit[1] / KILOBYTE


def _copies_scale(m: Measured, value: float) -> float:
    return value if m.method.stashes_weights else 0.0  # the formula's 1 is then the weights themselves


def _streams_scale(m: Measured, value: float) -> float:
    return value if m.method.reconstructs else 2 * value  # the formula's 1 is for a network with one stream


def _same(_: Measured, value: float) -> float:
    return value


QUANTITIES = (
    Quantity(
        "activations held, kB",
        "activation_storage",
        lambda m: m.activation_bytes(FIRST_INNER) / KILOBYTE,
        _activation_scale,
    ),
    Quantity(
        "stashed copies of the weights", "parameter_storage", lambda m: m.stashed_copies(FIRST_INNER), _copies_scale
    ),
    Quantity(
        "message down (hollow: up), streams", "communication_volume", lambda m: m.streams_sent("down"), _streams_scale
    ),
    Quantity("FLOPs of all stages, forwards", "flops", lambda m: m.flops * m.stages, _same, logarithmic=True),
    Quantity(
        "time per batch, executed, forwards",
        "mean_time_per_batch",
        lambda m: m.result["units_overlapped"],
        _same,
        logarithmic=True,
    ),
    Quantity("time per batch, measured, forwards", "mean_time_per_batch", lambda m: m.time, _same, logarithmic=True),
)


def figures(rows: dict[str, Row], sweep: Sweep) -> Iterator[Figure]:
    """Growth with J and growth with k, where more than one was measured."""
    for name, own in (("J", sweep.by_stages), ("k", sweep.by_accumulation)):
        if len({_position(m, name) for m in own}) > 1:
            yield _figure(rows, sweep, name, own)


def table(sweep: Sweep) -> Table:
    """Every measurement, a line each."""
    columns = [
        Column("J"),
        Column("k"),
        Column("method", numeric=False),
        *(Column(quantity.title) for quantity in QUANTITIES),
    ]
    body = [
        [
            number(m.stages, 0, tone=Tone.PLAIN),
            number(m.cell.accumulation, 0, tone=Tone.PLAIN),
            method_name(m.method),
            *(
                number(value, 2) if (value := quantity.measured(m)) is not None else missing("not measured")
                for quantity in QUANTITIES
            ),
        ]
        for m in sweep.all
    ]
    return Table(
        key=f"table1-growth-{sweep.scale}",
        caption=f"Every measurement of the first inner stage, scale “{sweep.scale}”.",
        columns=columns,
        rows=body,
    )


def _position(m: Measured, name: str) -> int:
    return m.stages if name == "J" else m.cell.accumulation


def _figure(rows: dict[str, Row], sweep: Sweep, name: str, own: Sequence[Measured]) -> Figure:
    shown = list(dict.fromkeys(m.method for m in own))
    places = sorted({_position(m, name) for m in own})
    fixed = f"k = {own[0].cell.accumulation}" if name == "J" else f"J = {sweep.reference_stages}"
    key, title = f"growth-{name}-{sweep.scale}", f"Table 1 as a function of {name}, {fixed}"
    description = (
        f"Six panels over {name} = {', '.join(map(str, places))}: {'; '.join(q.title for q in QUANTITIES)}. Lines are "
        "the published formulas, dots the measurements. " + _described(own, name)
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 5.4), layout="constrained")
        for panel, quantity in zip(drawing.subplots(2, 3).flat, QUANTITIES, strict=True):
            for method in shown:
                _draw(panel, quantity, rows, [m for m in own if m.method is method], name)
            panel.set(title=quantity.title, xlabel=name)
            panel.set_xscale("log", base=2)
            panel.set_xticks(places, labels=[str(place) for place in places])
            panel.minorticks_off()
            if quantity.logarithmic:
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
                panel.yaxis.set_major_formatter("{x:g}")
                panel.yaxis.set_minor_formatter(ticker.NullFormatter())
            else:
                panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        sns.despine(drawing)
        drawing.legend(handles=[_legend_line(method) for method in shown], loc="outside lower center", ncols=len(shown))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    caption = (
        f"{title}, scale “{sweep.scale}”, first inner stage. Line: published formula (of stashed copies without "
        "rounding up); dot: measured. Approximate inputs is not in the paper's table and has no line. Curves that "
        "coincide hide one another; the table below has every value."
    )
    return Figure(key, title, description, svg, caption)


def _draw(panel: Axes, quantity: Quantity, rows: dict[str, Row], own: Sequence[Measured], name: str) -> None:
    method = own[0].method
    colour = plots.COLOURS[method]
    row = rows.get(PUBLISHED_NAMES.get(method, ""))
    if row is not None:
        span = range(_position(own[0], name), _position(own[-1], name) + 1)
        values = [_formula(quantity, row, own[0], name, place) for place in span]
        panel.plot(span, values, color=colour, linewidth=1.2, linestyle=_line(method))
    dots = [(_position(m, name), value) for m in own if (value := quantity.measured(m)) is not None]
    panel.plot([x for x, _ in dots], [y for _, y in dots], "o", color=colour, markersize=4.5, alpha=0.8)
    if quantity.column == "communication_volume":
        up = [m.streams_sent("up") for m in own]
        places = [_position(m, name) for m in own]
        panel.plot(places, up, "o", markeredgecolor=colour, markerfacecolor="none", markersize=6.5)


def _formula(quantity: Quantity, row: Row, m: Measured, name: str, place: int) -> float:
    values = {"J": m.stages, "j": FIRST_INNER + 1, "k": m.cell.accumulation, "FG": 1.0, name: place}
    return quantity.scale(m, formula.evaluate(row[quantity.column], values))


def _described(own: Sequence[Measured], name: str) -> str:
    least, most = _position(own[0], name), _position(own[-1], name)
    ends = []
    for method in dict.fromkeys(m.method for m in own):
        mine = [m for m in own if m.method is method]
        first, last = (m.activation_bytes(FIRST_INNER) / KILOBYTE for m in (mine[0], mine[-1]))
        ends.append(f"{method.title} {first:.1f} to {last:.1f} kB")
    return f"Activations from {name} = {least} to {most}: {', '.join(ends)}."


def _line(method: Method) -> Literal["-"] | tuple[float, Sequence[float]]:
    dashes = plots.DASHES[method]
    return (0, dashes) if dashes else "-"


def _legend_line(method: Method) -> Line2D:
    return Line2D(
        [],
        [],
        color=plots.COLOURS[method],
        linestyle=_line(method),
        marker="o",
        markersize=4.5,
        label=short_title(method),
    )
