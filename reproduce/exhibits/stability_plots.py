"""The maps of stability as a drawing: heat maps with the number in each field, hatched where training breaks.

A heat map of accuracies alone has the region of divergence in its palest colour, where it looks like missing data. So
what broke is hatched, what was not run has a dot, and every field has its number.
"""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from reproduce.exhibits.divergence import chance
from reproduce.exhibits.stability_map import Map, Point
from reproduce.grids.plans.stability import COMPARED
from reproduce.show import plots
from reproduce.show.content import Figure, signless, with_sign


def figure(found: Map, words: str) -> Figure:
    """The maps of a scale; `words` say what can be seen in them."""
    subject = "Stability of PETRA and backpropagation"
    title = f"{subject}, scale “{found.scale}”"
    key = f"stability-{found.scale}"
    description = (
        "Fields by k (upwards) and learning rate (to the right), one row of panels for each length of warm-up: test "
        "accuracy of PETRA, of backpropagation, and their difference; hatched where training breaks. " + words
    )
    known = [a for point in found.cells for method in COMPARED if (a := found.accuracy(point, method)) is not None]
    gaps = [abs(gap) for point in found.cells if (gap := found.difference(point)) is not None]
    low = chance(found.example)
    accuracies = mpl.colors.Normalize(low, max([*known, low + 1]))
    differences = mpl.colors.Normalize(-max([*gaps, 1.0]), max([*gaps, 1.0]))
    with plots.style():
        height = 0.9 + len(found.warmups) * (0.75 + 0.34 * len(found.accumulations))
        drawing = Drawing(figsize=(10.4, height), layout="constrained")
        rows = drawing.subplots(len(found.warmups), len(COMPARED) + 1, squeeze=False)
        for row, warmup in zip(rows, found.warmups, strict=True):
            points = [point for point in found.cells if point.warmup == warmup]
            for panel, method in zip(row, COMPARED, strict=False):
                for point in points:
                    _field(
                        panel,
                        _place(found, point),
                        found.accuracy(point, method),
                        mpl.colormaps["YlGnBu"],
                        accuracies,
                        hatched=bool(found.broken(point, method)),
                    )
                panel.set_title(f"{method.title}, %")
            for point in points:
                _field(
                    row[-1],
                    _place(found, point),
                    found.difference(point),
                    mpl.colormaps["RdBu"],
                    differences,
                    hatched=any(found.broken(point, method) for method in COMPARED),
                    sign=True,
                )
            row[-1].set_title("PETRA less backpropagation, points")
            row[0].set_ylabel(f"warm-up {count_epochs(warmup)}\nk")
            for panel in row:
                _axes(panel, found)
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = (
        f"{subject} ({found.described}). Test accuracy after the "
        "last epoch. Hatched: broken by the rule above; on the right, where one of the two is. A dot: not run."
    )
    return Figure(key, title, description, svg, caption)


def _place(found: Map, point: Point) -> tuple[int, int]:
    return found.rates.index(point.rate), found.accumulations.index(point.k)


def _field(
    panel: Axes,
    place: tuple[int, int],
    value: float | None,
    colours: "mpl.colors.Colormap",
    scale: "mpl.colors.Normalize",
    *,
    hatched: bool,
    sign: bool = False,
) -> None:
    """One field with its number; without a value a dot, or a cross where there is none because the loss left."""
    colour = mpl.colors.to_rgb("white") if value is None else colours(scale(value))[:3]
    dark = sum(weight * part for weight, part in zip((0.299, 0.587, 0.114), colour, strict=True)) < 0.5
    corner = (place[0] - 0.5, place[1] - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
    if hatched:
        hatch = Rectangle(
            corner, 1, 1, fill=False, hatch="////", linewidth=0, edgecolor="#b9b9b4" if dark else "#7a7a76"
        )
        panel.add_patch(hatch)
    shown = with_sign if sign else lambda v, digits: signless(f"{v:.{digits}f}")
    words = shown(value, 1) if value is not None else "\N{MULTIPLICATION SIGN}" if hatched else "·"
    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.2} if hatched else None
    panel.text(*place, words, ha="center", va="center", fontsize=8, color="white" if dark else plots.INK, bbox=box)


def _axes(panel: Axes, found: Map) -> None:
    rates: Sequence[float] = found.rates
    panel.set(xlim=(-0.5, len(rates) - 0.5), ylim=(-0.5, len(found.accumulations) - 0.5), xlabel="rate")
    panel.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    panel.set_yticks(range(len(found.accumulations)), [str(k) for k in found.accumulations])
    panel.grid(visible=False)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def count_epochs(epochs: float) -> str:
    """0.5 epochs, 1 epoch."""
    return f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
