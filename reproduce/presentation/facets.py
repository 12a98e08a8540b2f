"""Declare figures: a frame, its axes, the columns that form panels, and the layers that draw each panel.

    facet(runs, [line(), dots()], key="…", caption="…", x="k", y="test_accuracy", panels=Panels(col="network"))

Panels are matplotlib axes. A band is the range of the runs or the interval of their mean by Student's t, and is
deterministic. Hues are methods, kinds of tensors, or any values with a `Look`. A value has the same colour and dashes
in all figures.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis as MatplotlibAxis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from pandas import DataFrame, isna
from pandas.api.types import is_numeric_dtype

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.presentation import plots
from reproduce.presentation.compare import interval
from reproduce.presentation.content import MINUS, Figure, short_title, signless, with_sign
from reproduce.presentation.statistics import MARGIN_POINTS, Estimate
from reproduce.text import count

#: Axis labels of columns of runs.
LABELS = {
    "test_accuracy": "test accuracy, %",
    "final_accuracy": "test accuracy, %",
    "epoch": "epoch",
    "reference_rate": "rate",
    "stage": "stage j",
    "k": "k",
    "epochs": "epochs",
    "J": "stages J",
}
#: Columns that are settings, not measurements: their axis is logarithmic and labels every value.
CHOSEN = ("k", "epochs", "J")
FEW_DECADES = 1e4  # ratio of an axis's ends below which 1, 2 and 5 of each decade have ticks


@dataclass(frozen=True)
class Look:
    """Style of a value of the hue: its name in the legend, its colour, its dashes, its marker.

    Dashes are empty for a solid line, and None for marks without a line.
    """

    label: str
    colour: str
    dashes: tuple[float, ...] | None = ()
    marker: str = "o"

    @property
    def linestyle(self) -> Literal["-", ""] | tuple[float, Sequence[float]]:
        if self.dashes is None:
            return ""
        return (0, self.dashes) if self.dashes else "-"


#: By method name.
METHOD_LOOKS = {m.name: Look(short_title(m), *plots.STYLES[m]) for m in methods.ALL}
#: By title, including the titles of synchronous pipelines (`reproduce.modelling`).
TITLE_LOOKS = {m.title: METHOD_LOOKS[m.name] for m in methods.ALL} | {
    "GPipe": Look("GPipe", "#7a5195", (5, 1, 1, 1), "s"),
    "GPipe, checkpointing": Look("GPipe, checkpointing", "#bc5090", (2, 1), "s"),
    "1F1B": Look("1F1B", "#0072b2", (4, 1.5), "s"),
    "1F1B, checkpointing": Look("1F1B, checkpointing", "#6f8fd6", (1, 1), "s"),
}
#: By kind of the tensors that a stage holds.
KIND_LOOKS = {
    kind: Look(kind.replace("_", " "), colour)
    for kind, colour in zip(
        KINDS,
        ("#4a4a4a", "#9a9a96", "#cc79a7", "#009e73", "#56b4e9", "#e69f00", "#f0e442", "#0072b2", "#8c6bb1"),
        strict=True,
    )
}


def rising(values: Sequence[float]) -> dict[Any, Look]:
    """Return looks for a quantity, such as a number of stages, with darker colours for larger values."""
    shades = mpl.colormaps["viridis_r"](np.linspace(0, 1, len(values) + 3)[2:-1])  # the brightest ones are hard to see
    return {value: Look(f"{value:g}", to_hex(shade)) for value, shade in zip(sorted(values), shades, strict=True)}


@dataclass(frozen=True)
class Panel:
    """Input of a layer."""

    axes: Axes
    part: DataFrame  # rows of the panel that have a y
    #: Names of columns.
    x: str
    y: str
    hue: str
    looks: Mapping[Any, Look]  # by value of the hue, in the order of the legend
    all_rows: DataFrame  # all rows of the panel, including those without a y
    figure: DataFrame  # all rows of the figure

    @cached_property
    def by_hue(self) -> list[tuple[Look, DataFrame]]:
        """The looks that occur in the panel, each with its rows."""
        hues = self.part[self.hue]
        known = set(hues)
        return [(look, self.part[hues == value]) for value, look in self.looks.items() if value in known]


Layer = Callable[[Panel], object]


@dataclass(frozen=True)
class Axis:
    """An axis of a figure.

    Attributes:
        column: Column of its values.
        label: Text next to it. The default is the entry of the column in `LABELS`.
        log: Whether it is logarithmic. An x-axis of a column in `CHOSEN` always is.
        ticks: The only places on an x-axis that have ticks. For a column in `CHOSEN` the default is every value.

    """

    column: str
    label: str | None = None
    log: bool = False
    ticks: Sequence[float] | None = None

    @property
    def text(self) -> str:
        """Text next to the axis."""
        return LABELS.get(self.column, "") if self.label is None else self.label


@dataclass(frozen=True)
class Panels:
    """The arrangement of a figure's panels.

    Attributes:
        row: Column whose values form lines of panels, in order of appearance.
        col: Column whose values form adjacent panels, in order of appearance.
        wrap: Number of panels in a line, if only `col` is given.
        titles: Title of a panel from the values of row and col. The default is the value of the column, preceded by the
            name of the column if it is one of `CHOSEN`.
        margins: Text at the left of a line of panels, from the value of row. Then only the panels of the first line
            have titles, and only the x-axes of the last line have labels.
        share: Whether panels share x-axes and y-axes, each as in matplotlib (`True`, `False`, "row", "col").
        height: Height of a panel in inches.
        width: Width of all panels of a line together in inches.

    """

    row: str | None = None
    col: str | None = None
    wrap: int | None = None
    titles: Callable[[Any, Any], str] | None = None
    margins: Callable[[Any], str] | None = None
    share: tuple[Any, Any] = (True, True)
    height: float = 2.6
    width: float = 10.4

    def title(self, row: Any, col: Any) -> str:
        """Return the title of a panel; empty for a single one."""
        if self.row is None and self.col is None:
            return ""
        if self.titles:
            return self.titles(row, col)
        return f"{self.col} = {col}" if self.col in CHOSEN else str(col if self.col else row)


@dataclass(frozen=True)
class Beside:
    """One more panel to the right of a single one, with the same rows and x-axis.

    Attributes:
        layers: What is drawn in it.
        label: Label of its y-axis.

    """

    layers: Sequence[Layer]
    label: str = ""


ONE_PANEL = Panels()
Legend = Literal["line", "mark", "both", "area", ""]


def facet(
    frame: DataFrame | Iterable[Mapping[str, Any]],
    layers: Sequence[Layer],
    *,
    key: str,
    caption: str,
    x: str | Axis,
    y: str | Axis,
    title: str = "",
    hue: str = "method",
    looks: Mapping[Any, Look] = METHOD_LOOKS,
    panels: Panels = ONE_PANEL,
    legend: Legend = "line",
    beside: Beside | None = None,
) -> Figure:
    """Draw a figure of panels. Its alternative text states where every line begins and ends (see `seen`).

    Args:
        frame: The rows, as a table or mappings. None and NaN are not drawn. Without rows there is no drawing.
        layers: Layers that are drawn in every panel, each above the previous one.
        key: Name of the anchor, unique within the page.
        caption: What the figure shows, at which scale.
        x: The x-axis, or its column.
        y: The y-axis, or its column.
        title: Accessible name. The default is the caption up to its first bracket or full stop.
        hue: Column that separates curves or colours.
        looks: Styles of the values of the hue, in the order of the legend. Values without rows are left out.
        panels: Arrangement of the panels.
        legend: Symbol of a hue in the legend below the panels ("both": a line with a mark); empty for no legend.
        beside: One more panel to the right of a single one.

    """
    frame = frame if isinstance(frame, DataFrame) else DataFrame(list(frame))
    title = title or caption.partition(" (")[0].partition(". ")[0]
    if frame.empty:
        return Figure(key, title, "", caption)
    x, y = (Axis(axis) if isinstance(axis, str) else axis for axis in (x, y))
    if x.column in CHOSEN:
        x = replace(x, log=True, ticks=sorted(set(frame[x.column])) if x.ticks is None else x.ticks)
    looks = {value: look for value, look in looks.items() if (frame[hue] == value).any()}
    chart = _Chart(frame, x, y, hue, looks, panels, beside)
    with mpl.rc_context(plots.STYLE):
        drawing, grid = chart.make_grid()
        described = [chart.draw(axes, layers, place) for axes, place in zip(grid.flat, chart.places, strict=False)]
        chart.finish_axes(list(grid.flat))
        if legend and looks:
            chart.add_legend(drawing, legend)
        plots.lay_out(drawing, grid, chart.widths)
        axes = " against ".join(filter(None, (y.text, x.text)))
        description = f"{', '.join(filter(None, (count(len(described), 'panel'), axes)))}. {'. '.join(described)}."
        if beside:
            description += f" Beside: {beside.label}."
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
        box = plots.box_of(drawing, grid.flat[0])
    return Figure(key, title, svg, caption, panel=box)


@dataclass(frozen=True)
class _Chart:
    """The settings that all panels of a figure share. See `facet`."""

    frame: DataFrame
    x: Axis
    y: Axis
    hue: str
    looks: Mapping[Any, Look]
    panels: Panels
    beside: Beside | None

    @cached_property
    def places(self) -> list[tuple[Any, Any]]:
        """Values of row and col of each panel, by lines."""
        columns = self.panels.row, self.panels.col
        rows, cols = (list(dict.fromkeys(self.frame[column])) if column else [None] for column in columns)
        return [(row, col) for row in rows for col in cols]

    @property
    def widths(self) -> tuple[int, ...]:
        """Relative widths of the columns of panels."""
        if self.beside:
            return (3, 2)
        return (1,) * (self.panels.wrap or sum(row == self.places[0][0] for row, _ in self.places))

    def make_grid(self) -> tuple[Drawing, npt.NDArray[Any]]:
        """Make the drawing and its panels, in lines of equal lengths."""
        lines = -(-len(self.places) // len(self.widths))
        drawing = Drawing(figsize=(self.panels.width, 0.6 + self.panels.height * lines), dpi=72)
        share_x, share_y = (False, False) if self.beside else self.panels.share
        grid: npt.NDArray[Any] = drawing.subplots(
            lines, len(self.widths), squeeze=False, sharex=share_x, sharey=share_y, width_ratios=self.widths
        )
        return drawing, grid

    def draw(self, axes: Axes, layers: Sequence[Layer], place: tuple[Any, Any]) -> str:
        """Draw a panel with its title and labels, and describe its content."""
        part = self.frame
        for column, value in zip((self.panels.row, self.panels.col), place, strict=True):
            part = part if column is None else part[part[column] == value]
        panel = self._draw_layers(axes, layers, part)
        (row, col), margins, (first, last) = place, self.panels.margins, (self.places[0], self.places[-1])
        name = self.panels.title(row, col)
        if margins is None:
            axes.set_title(name)
            axes.set(xlabel=self.x.text, ylabel=self.y.text)
        else:
            axes.set_title(name if row == first[0] else "")
            axes.set(xlabel=self.x.text * (row == last[0]), ylabel=margins(row) if col == first[1] else "")
        return ": ".join(filter(None, (name.replace("\n", ", "), seen(panel))))

    def _draw_layers(self, axes: Axes, layers: Sequence[Layer], part: DataFrame) -> Panel:
        y = self.y.column
        known = part.dropna(subset=[y]) if y in part else part
        panel = Panel(axes, known, self.x.column, y, self.hue, self.looks, part, self.frame)
        for layer in layers:
            layer(panel)
        return panel

    def finish_axes(self, panels: Sequence[Axes]) -> None:
        """Draw the additional panel; set scales, ticks and legends of single panels; hide labels between panels."""
        drawn = len(self.places)
        if self.beside:
            self._draw_layers(panels[1], self.beside.layers, self.frame)
            panels[1].set(xlabel=self.x.text, ylabel=self.beside.label)
            _set_ticks(panels[1], self.x, replace(self.y, log=False), self.frame)
        for axes in panels[:drawn]:
            _set_ticks(axes, self.x, self.y, self.frame)
        for axes in panels[drawn + bool(self.beside) :]:
            axes.set_axis_off()
        if self.beside:  # after the scale is set: a linear axis begins below 0, where a logarithm is undefined
            panels[1].set_xlim(panels[0].get_xlim())
        elif self.panels.share == (True, True):
            for axes in panels:
                axes.label_outer()
            for axes in panels[max(0, drawn - len(self.widths)) : drawn]:  # no panel is below them
                axes.tick_params(labelbottom=True)
                axes.set_xlabel(self.x.text)

    def add_legend(self, drawing: Drawing, legend: Legend) -> None:
        """Add a legend of the hues below the panels."""
        handles = [_handle(look, legend) for look in self.looks.values()]
        longest = max(len(look.label) for look in self.looks.values())
        in_a_line = max(1, int(self.panels.width / (0.55 + 0.078 * longest)))
        drawing.legend(handles=handles, loc="lower center", ncols=min(len(handles), in_a_line))


def _set_ticks(axes: Axes, x: Axis, y: Axis, frame: DataFrame) -> None:
    """Set the scales and ticks of a drawn panel, and place a legend of its layers."""
    if x.log:
        axes.set_xscale("log")
        _divide_decades(axes.xaxis)
    if y.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        low, high = axes.get_ylim()
        if high < low * FEW_DECADES:  # powers of ten would give only one or two ticks
            _divide_decades(axes.yaxis)
    if x.ticks is not None:
        axes.xaxis.set_major_locator(ticker.FixedLocator(list(x.ticks)))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    locator = axes.xaxis.get_major_locator()
    if isinstance(locator, ticker.MaxNLocator) and frame[x.column].dtype.kind == "i":
        locator.set_params(integer=True)
    if axes.get_legend_handles_labels()[0]:
        # Above the axes: "best" avoids only lines, and would cover the bars of differences.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False)


def _divide_decades(axis: MatplotlibAxis) -> None:
    """Put ticks at 1, 2 and 5 of every decade of a logarithmic axis."""
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def _handle(look: Look, kind: str) -> Patch | Line2D:
    if kind == "area":
        return Patch(color=look.colour, label=look.label)
    if kind == "mark":
        return Line2D([], [], color=look.colour, label=look.label, linestyle="", marker=look.marker, markersize=5)
    marker = look.marker if kind == "both" or look.dashes is None else ""
    return Line2D([], [], color=look.colour, label=look.label, linestyle=look.linestyle, marker=marker, markersize=4.5)


def seen(panel: Panel) -> str:
    """Describe the content of a panel in words.

    Bars are described by their sums, rows by their means for each hue ("PETRA 59.2; DSP 58.4"), and lines by their
    means at both ends ("PETRA from 0.7 to 0.99").
    """
    part, x, y = panel.part, panel.x, panel.y
    for names, values in ((x, y), (y, x)):
        if names in part and not is_numeric_dtype(part[names]):
            labels = {value: look.label for value, look in panel.looks.items()}
            mixed = names == y and (part.groupby(names)[panel.hue].nunique() > 1).any()  # a mean over hues is useless
            by = [names, panel.hue] if mixed else [names]
            grouped = part.groupby(by, sort=False)[values]
            amounts = grouped.sum() if names == x else grouped.mean()
            places = [
                ", ".join(str(labels.get(name, name)) for name in (place if mixed else [place]))
                for place in amounts.index
            ]
            return "; ".join(f"{place} {value:.4g}" for place, value in zip(places, amounts, strict=True))
    lines = []
    for look, of_hue in panel.by_hue:
        means = of_hue.groupby(x)[y].mean()
        first, last = (f"{mean:.4g}" for mean in means.iloc[[0, -1]])
        lines.append(f"{look.label} {first}" if len(means) < 2 else f"{look.label} from {first} to {last}")
    return "; ".join(lines) or "nothing is known yet"


# --- layers


def where(layer: Layer, **values: Any) -> Layer:
    """Restrict a layer to the rows with these values, such as dots for measured rows. Skip panels without such rows."""

    def draw(panel: Panel) -> None:
        part = panel.part
        for column, value in values.items():
            part = part[part[column] == value]
        looks = {hue: look for hue, look in panel.looks.items() if (part[panel.hue] == hue).any()}
        if not part.empty:
            layer(replace(panel, part=part, looks=looks))

    return draw


def with_column(y: str, layer: Layer) -> Layer:
    """Draw a layer from another column than y, such as a formula next to measurements, for rows with a value."""

    def draw(panel: Panel) -> None:
        part = panel.all_rows.dropna(subset=[y])
        if not part.empty:
            layer(replace(panel, y=y, part=part))

    return draw


def from_zero(panel: Panel) -> None:
    """Begin the y-axis at 0. This layer must follow those that draw."""
    panel.axes.set_ylim(0, 1.04 * panel.axes.get_ylim()[1])


def logarithmic(panel: Panel) -> None:
    """Make the y-axis of this panel logarithmic, with ticks at 1, 2 and 5 of every decade."""
    panel.axes.set_yscale("log")
    _divide_decades(panel.axes.yaxis)


def line(
    band: Literal["", "range", "interval"] = "", *, width: float = 1.6, marked: bool = False, gaps: bool = False
) -> Layer:
    """Draw the mean of y at every x, one line for each hue.

    Args:
        band: The range of the runs, or the 95 % interval of the mean; empty for no band.
        width: Width of the line in points.
        marked: Whether each place with a mean has a mark.
        gaps: Whether the line is interrupted where the hue has no mean and the panel has any row, also one without y.

    """

    def line(panel: Panel) -> None:
        for look, part in panel.by_hue:
            places = part.groupby(panel.x)
            means = places[panel.y].mean()
            places_of_all = sorted(set(panel.all_rows[panel.x])) if gaps else list(means.index)
            means = means.reindex(places_of_all)
            panel.axes.plot(
                means.index,
                means.to_numpy(),
                color=look.colour,
                linestyle=look.linestyle,
                linewidth=width,
                marker=look.marker if marked else "",
                markersize=2.5,
                markeredgewidth=0,
            )
            if band:
                ends = {at: known for at, rows in places if (known := _band(rows, panel.y, band))}
                xs: Any = places_of_all if gaps else list(ends)
                low, high = ([ends[at][end] if at in ends else math.nan for at in xs] for end in (0, 1))
                panel.axes.fill_between(xs, low, high, color=look.colour, alpha=0.14, linewidth=0)

    return line


def _band(rows: DataFrame, y: str, band: str) -> tuple[float, float] | None:
    """Return the ends of the band at one place; None if a mean has no interval."""
    return (rows[y].min(), rows[y].max()) if band == "range" else interval(rows, y)


def dots(*, size: float = 4.5, apart: float = 0.0, even: bool = False, broken: str = "", hollow: str = "") -> Layer:
    """Draw a mark for each row of the frame.

    Args:
        size: Size of a mark in points.
        apart: Horizontal distance between hues, as a fraction of x.
        even: Whether `apart` is in units of x instead, for example for an axis that begins at 0.
        broken: Column in which any non-empty text draws the row as a cross.
        hollow: Column in which any non-empty text draws the row as a ring.

    """

    def dots(panel: Panel) -> None:
        shift = -apart * (len(panel.looks) - 1) / 2
        for look, part in panel.by_hue:
            for marker, ring, rows in _by_mark(part, look.marker, broken, hollow):
                panel.axes.plot(
                    rows[panel.x] + (shift if even else shift * rows[panel.x]),
                    rows[panel.y],
                    marker,
                    color=look.colour,
                    markersize=size * (1.4 if marker == "x" else 1),
                    alpha=0.8,
                    markerfacecolor="none" if ring else look.colour,
                    markeredgewidth=1.5 if ring or marker == "x" else 0,
                )
            shift += apart

    return dots


def _by_mark(part: DataFrame, marker: str, broken: str, hollow: str) -> list[tuple[str, bool, DataFrame]]:
    """Return the rows of each kind of mark: its shape and whether it is a ring."""
    if not broken and not hollow:
        return [(marker, False, part)]
    kinds = part[broken].fillna("").astype(bool).map({True: "x", False: marker}) if broken else marker
    rings = part[hollow].astype(bool) if hollow else False
    groups = part.assign(_marker=kinds, _ring=rings).groupby(["_marker", "_ring"])
    return [(str(kind), bool(ring), rows) for (kind, ring), rows in groups]


def rows(names: Sequence[str] = (), *, bounded: bool = False) -> Layer:
    """Draw a row for each of these names (values of y), from the top: a dot for each run, and a stroke at their mean.

    Without names, y is the hue, and each hue of the figure has a row with its name in the legend. With `bounded`, a
    line shows the 95 % interval of the mean, if there is one.
    """

    def rows(panel: Panel) -> None:
        places = list(names or panel.looks)
        for look, part in panel.by_hue:
            for y, points in part.groupby(panel.y):
                place, mean = places.index(str(y)), points[panel.x].mean()
                style: dict[str, Any] = {"color": look.colour, "markersize": 4.5, "alpha": 0.75, "markeredgewidth": 0}
                panel.axes.plot(points[panel.x], [place] * len(points), look.marker, **style)
                panel.axes.plot([mean] * 2, [place - 0.36, place + 0.36], color=look.colour, linewidth=1.4)
                if bounded and (ends := interval(points, panel.x)):
                    panel.axes.plot(ends, [place] * 2, color=look.colour, linewidth=1, alpha=0.6)
        _name_rows(panel.axes, list(names) or [look.label for look in panel.looks.values()])

    return rows


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel from the top, with grid lines only across them."""
    axes.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), yticklabels=names)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def stack(*, sums: str = "", sideways: bool = True, mean: bool = False) -> Layer:
    """Draw stacked bars: a bar for each x and a colour for each hue, with y summed, in the order of rows and looks.

    Args:
        sums: Format of the sum at the end of a bar, such as ".1f"; empty for no sum.
        sideways: Whether bars are horizontal, with x downwards, which leaves space for long names. Otherwise vertical.
        mean: Whether a dashed line is drawn at the mean of the sums.

    """

    def stack(panel: Panel) -> None:
        axes, part = panel.axes, panel.part
        bars = list(dict.fromkeys(part[panel.x]))
        ends = np.zeros(len(bars))
        draw = axes.barh if sideways else axes.bar
        for look, of_hue in panel.by_hue:
            amounts = of_hue.groupby(panel.x)[panel.y].sum().reindex(bars, fill_value=0.0).to_numpy()
            draw(range(len(bars)), amounts, 0.72, ends, color=look.colour, linewidth=0)
            ends = ends + amounts
        if sideways:
            _name_rows(axes, bars)
        else:
            axes.set(xticks=range(len(bars)), xticklabels=bars)
        axes.tick_params(axis="y" if sideways else "x", length=0, labelsize=7.5)
        if mean:
            line = axes.axvline if sideways else axes.axhline
            line(ends.mean(), color=plots.INK, linewidth=1, linestyle=(0, (4, 2)))
        for place, end in enumerate(ends if sums else ()):
            style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": plots.QUIET}
            if sideways:
                axes.annotate(f"{end:{sums}}", (end, place), (3, 0), ha="left", va="center", **style)
            else:
                axes.annotate(f"{end:{sums}}", (place, end), (0, 2), ha="center", va="bottom", **style)
        if sums:
            axes.margins(x=0.06 if sideways else None, y=None if sideways else 0.06)

    return stack


def heat_map(least: float) -> Layer:
    """Draw a field for each (x, hue) with the number y, hatched if the column `broken` is not empty.

    A plain heat map gives broken runs its palest colour, which looks like missing data. Therefore every field contains
    its number, a dot without a run, or a cross if the loss was not finite. The y-axis has the order of the hue,
    upwards. All panels share one colour scale that begins at `least`, such as the accuracy of guessing. If the column
    `difference` marks the panel's y as differences, they have a sign and a scale from red over white to blue.
    """

    def heat_map(panel: Panel) -> None:
        axes, xs, ys = panel.axes, sorted(set(panel.figure[panel.x])), list(panel.looks)
        sign = bool(panel.all_rows["difference"].any())
        values = panel.figure.loc[panel.figure["difference"] == sign, panel.y].dropna()
        most = max([1.0, *values.abs()] if sign else [least + 1, *values])
        norm = mpl.colors.Normalize(-most if sign else least, most)
        colours = mpl.colormaps["RdBu" if sign else "YlGnBu"]
        for row in panel.all_rows.to_dict("records"):
            value = None if isna(row[panel.y]) else float(row[panel.y])
            colour = EMPTY_FIELD if value is None else colours(norm(value))[:3]
            place = xs.index(row[panel.x]), ys.index(row[panel.hue])
            _field(axes, place, value, colour, hatched=bool(row["broken"]), sign=sign)
        axes.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
        axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
        axes.set_yticks(range(len(ys)), [panel.looks[y].label for y in ys])
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_linewidth(0)

    return heat_map


#: Colours of fields and of the text on them. None is in `plots.THEMED`: a field has the same colour on a dark page, so
#: its text must keep its colour too.
EMPTY_FIELD, ON_DARK, ON_LIGHT = (0.99, 0.99, 0.99), "#fefefe", "#1d1d1d"


def _field(
    axes: Axes, place: tuple[int, int], value: float | None, colour: tuple[float, ...], *, hatched: bool, sign: bool
) -> None:
    dark = sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), colour, strict=True)) < 0.5
    corner = (place[0] - 0.5, place[1] - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
    if hatched:
        edge = "#b9b9b4" if dark else "#7a7a76"
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", linewidth=0, edgecolor=edge))
    text = "\N{MULTIPLICATION SIGN}" if hatched else "·"
    if value is not None:
        text = with_sign(value, 1) if sign else signless(f"{value:.1f}")
    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.2} if hatched else None
    axes.text(*place, text, ha="center", va="center", fontsize=8, color=ON_DARK if dark else ON_LIGHT, bbox=box)


def differences(by: Mapping[str, Mapping[Any, Estimate | None]], colours: Mapping[str, str] | None = None) -> Layer:
    """Draw differences with their 95 % intervals against x, and shade the margin of the verdicts.

    Args:
        by: Estimates by label and x.
        colours: Colours by label. The default is the colour of PETRA.

    """

    def differences(panel: Panel) -> None:
        axes = panel.axes
        axes.axhspan(-MARGIN_POINTS, MARGIN_POINTS, color=plots.QUIET, alpha=0.12, linewidth=0)
        axes.axhline(0, color=plots.QUIET, linewidth=0.8)
        for number, (label, by_place) in enumerate(by.items()):
            known = {place: estimate for place, estimate in by_place.items() if estimate is not None}
            axes.errorbar(
                [place * 1.06 ** (2 * number - len(by) + 1) for place in known],
                [estimate.mean for estimate in known.values()],
                yerr=[estimate.half_width or 0.0 for estimate in known.values()],
                fmt="os^v"[number % 4],
                color=(colours or {}).get(label, plots.COLOURS[methods.PETRA]),
                markerfacecolor=None if number == 0 else "white",
                markersize=4.5,
                linewidth=1.2,
                label=label,
            )
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.4g}".replace("-", MINUS) if value else "0")

    return differences


def hline(estimated: Estimate | None, label: str) -> Layer:
    """Draw a horizontal line at a mean without a place on the x-axis, with its interval as a band."""

    def draw(panel: Panel) -> None:
        if estimated is not None:
            panel.axes.axhline(estimated.mean, color=plots.QUIET, linewidth=1.2, linestyle=(0, (4, 2)), label=label)
            if estimated.low is not None and estimated.high is not None:
                panel.axes.axhspan(estimated.low, estimated.high, color=plots.QUIET, alpha=0.08, linewidth=0)

    return draw


def zero(panel: Panel) -> None:
    """Draw a thin line at 0, for values with either sign."""
    panel.axes.axhline(0, color=plots.QUIET, linewidth=0.8)


def label_places(column: str, shaded: Collection[str] = ()) -> Layer:
    """Label whole numbers on the x-axis with the value of the column, and shade places with a value in `shaded`."""

    def labelled(panel: Panel) -> None:
        words = dict(zip(panel.all_rows[panel.x], panel.all_rows[column], strict=True))
        for place in [place for place, word in words.items() if word in shaded]:
            panel.axes.axvspan(place - 0.5, place + 0.5, color=plots.RULE, alpha=0.45, linewidth=0, zorder=0)
        places = sorted(words)[:: 1 + len(words) // 20]
        panel.axes.set_xlim(min(words) - 0.5, max(words) + 0.5)
        panel.axes.set_xticks(places, [f"{place}\n{words[place]}" for place in places], fontsize=7.5)

    return labelled


def cut_to(frame: DataFrame | None = None) -> Layer:
    """Scale the y-axis, in percent, to the rows: with three seeds the band of a mean is wider than all other content.

    The margin is half the range of the rows, at least half a point.

    Args:
        frame: The rows; None for those of the figure.

    """

    def cut_to(panel: Panel) -> None:
        values = (panel.figure if frame is None else frame)[panel.y].astype(float).dropna()
        if len(values):
            spare = max(0.5, (values.max() - values.min()) / 2)
            panel.axes.set_ylim(max(0.0, values.min() - spare), min(100.0, values.max() + spare))

    return cut_to
