"""Curves of a benchmark: a panel for each axis that was varied and each quantity, a line for each method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from petra_core import methods
from petra_core.methods import Method
from reproduce.records.benchmarks import Benchmark, spread
from reproduce.show import plots
from reproduce.show.content import Figure, short_title

__all__ = ["Quantity", "figure", "method_of"]

_METHODS = {method.title: method for method in methods.KNOWN}


@dataclass(frozen=True)
class Quantity:
    """A row of panels: a quantity of the benchmark, how it is called with its unit, and what one of that unit is."""

    name: str
    title: str
    unit: float


def method_of(name: str) -> Method | None:
    """The method that a contestant is called after; None: no method."""
    return _METHODS.get(name)


def figure(
    benchmark: Benchmark, axes: Mapping[str, str], quantities: Sequence[Quantity], title: str, remark: str
) -> Figure | None:
    """Curves in logarithmic axes, with a mark at the median of every place; None if nothing was varied.

    Args:
        benchmark: with series of methods at places of the axes.
        axes: groups of the series, and what they are called.
        quantities: of the series; one without values has no row.
        title: of the figure.
        remark: what else its caption says.

    """
    present = {(s.group, s.quantity) for s in benchmark.series if s.at is not None}
    columns = [axis for axis in axes if any((axis, q.name) in present for q in quantities)]
    rows = [quantity for quantity in quantities if any((axis, quantity.name) in present for axis in columns)]
    if not columns:
        return None
    shown = [m for m in methods.KNOWN if any(s.name == m.title for s in benchmark.series)]
    key = f"benchmark-{benchmark.name}-curves"
    description = (
        f"Panels over {', '.join(axes[axis] for axis in columns)}; rows: {'; '.join(q.title for q in rows)}. "
        f"A line for each of {', '.join(m.title for m in shown)}."
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 0.5 + 2.4 * len(rows)), layout="constrained")
        panels = drawing.subplots(len(rows), len(columns), squeeze=False, sharey="row")
        for row, quantity in zip(panels, rows, strict=True):
            for panel, axis in zip(row, columns, strict=True):
                for method in shown:
                    _draw(panel, benchmark.curve(axis, method.title, quantity.name), method, quantity.unit)
                _scale(panel, sorted({s.at for s in benchmark.series if s.group == axis and s.at is not None}))
            row[0].set_ylabel(quantity.title)
        for panel, axis in zip(panels[-1], columns, strict=True):
            panel.set_xlabel(axes[axis])
        lines = [
            Line2D([], [], color=plots.COLOURS[m], linestyle=(0, plots.DASHES[m]), marker="o", label=short_title(m))
            for m in shown
        ]
        drawing.legend(handles=lines, loc="outside lower center", ncols=3)
        sns.despine(drawing)
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    return Figure(key, title, description, svg, f"{title}. {remark} Both axes are logarithmic.")


def _draw(panel: Axes, points: Sequence[tuple[float, float]], method: Method, unit: float) -> None:
    places = sorted({place for place, _ in points})
    medians = [spread([value for at, value in points if at == place]).median / unit for place in places]
    colour = plots.COLOURS[method]
    panel.plot(places, medians, "o", linestyle=(0, plots.DASHES[method]), color=colour, markersize=3.5, alpha=0.85)


def _scale(panel: Axes, places: Sequence[float]) -> None:
    panel.set(xscale="log", yscale="log")
    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    panel.minorticks_off()
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter("{x:g}")
