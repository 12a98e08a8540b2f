"""A drawing of accuracy against k or epochs: curves with bands, every seed a dot, the paired differences beside it.

With three seeds the band of a mean can be wider than everything else in the picture, and a picture scaled to it shows
nothing. So the left panel is scaled to the runs, and a band that is wider is cut at its edge.
"""

from collections.abc import Mapping

import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from petra_core import methods
from petra_core.methods import Method
from reproduce.show import plots
from reproduce.show.content import MINUS, short_title
from reproduce.show.statistics import MARGIN_POINTS, Estimate, estimate

BySeed = Mapping[int, float]
_APART = {methods.PETRA: 1.04, methods.BACKPROPAGATION: 1 / 1.04}  # factors, so that dots do not hide each other
_OFFSETS = (1 / 1.06, 1.06)
_MARKERS = ("o", "s")


def draw(
    *,
    key: str,
    title: str,
    description: str,
    axis: str,
    accuracies: Mapping[Method, Mapping[int, BySeed]],
    labels: Mapping[str, str],
    differences: Mapping[str, Mapping[int, Estimate | None]],
    baseline: BySeed | None = None,
) -> str:
    """An SVG of two panels.

    Args:
        key: unique within the page.
        title: accessible name.
        description: what can be seen, in words.
        axis: what it is against, such as k; drawn by logarithms.
        accuracies: by method, place on the axis and seed, percent.
        labels: what `differences` are to, in words; the first is the backpropagation of `accuracies`, the second, if
            there is a baseline, that.
        differences: of PETRA to each of `labels`, by place on the axis, points.
        baseline: of runs that are at no place of the axis, by seed, percent.

    """
    with plots.style():
        drawing = Drawing(figsize=(10.4, 4.2), layout="constrained")
        left, right = drawing.subplots(1, 2, width_ratios=(3, 2))
        matched, *others = labels.values()
        for apart in others:
            _baseline(left, baseline or {}, f"{methods.BACKPROPAGATION.title}, {apart}")
        for method, by_place in accuracies.items():
            words = f", {matched}" if method is methods.BACKPROPAGATION else ""
            _curve(left, method, short_title(method) + words, by_place)
        _differences(right, {labels[reference]: found for reference, found in differences.items()})
        left.set(ylabel="test accuracy, %", ylim=_limits([*_runs(accuracies), *(baseline or {}).values()]))
        right.set(ylabel="PETRA less backpropagation, points")
        right.yaxis.set_major_formatter(_signed)
        places = sorted({place for by_place in accuracies.values() for place in by_place})
        for panel in (left, right):
            panel.set(xscale="log", xlabel=axis, xlim=(places[0] / 1.25, places[-1] * 1.25))
            panel.xaxis.set_major_locator(ticker.FixedLocator(places))
            panel.xaxis.set_minor_locator(ticker.NullLocator())
            panel.xaxis.set_major_formatter(ticker.ScalarFormatter())
            if panel.get_legend_handles_labels()[0]:
                # Above it: "best" looks at lines alone, and would lie on the bars of the differences.
                panel.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False)
        sns.despine(drawing)
        return plots.to_svg(drawing, key=key, title=title, description=description)


def _curve(panel: Axes, method: Method, label: str, by_place: Mapping[int, BySeed]) -> None:
    means = {place: estimate(list(values.values())) for place, values in sorted(by_place.items()) if values}
    colour, apart = plots.COLOURS[method], _APART[method]
    if not means:
        return
    bands = [(place, m.low, m.high) for place, m in means.items() if m.low is not None and m.high is not None]
    if bands:
        places, low, high = zip(*bands, strict=True)
        panel.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    panel.plot(list(means), [mean.mean for mean in means.values()], color=colour, label=label)
    for place in means:
        values = list(by_place[place].values())
        panel.plot([place * apart] * len(values), values, "o", color=colour, markersize=4, alpha=0.8, markeredgewidth=0)


def _baseline(panel: Axes, values: BySeed, label: str) -> None:
    if not values:
        return
    found = estimate(list(values.values()))
    panel.axhline(found.mean, color=plots.QUIET, linewidth=1.2, linestyle=(0, (4, 2)), label=label)
    if found.low is not None and found.high is not None:
        panel.axhspan(found.low, found.high, color=plots.QUIET, alpha=0.08, linewidth=0)


def _differences(panel: Axes, differences: Mapping[str, Mapping[int, Estimate | None]]) -> None:
    panel.axhspan(-MARGIN_POINTS, MARGIN_POINTS, color=plots.QUIET, alpha=0.12, linewidth=0)
    panel.axhline(0, color=plots.QUIET, linewidth=0.8)
    offsets = _OFFSETS if len(differences) > 1 else (1.0,)
    for (label, by_place), offset, marker in zip(differences.items(), offsets, _MARKERS, strict=False):
        found = {place: difference for place, difference in by_place.items() if difference is not None}
        if not found:
            continue
        panel.errorbar(
            [place * offset for place in found],
            [difference.mean for difference in found.values()],
            yerr=[difference.half_width or 0.0 for difference in found.values()],
            fmt=marker,
            color=plots.COLOURS[methods.PETRA],
            markerfacecolor=plots.COLOURS[methods.PETRA] if marker == "o" else "white",
            markersize=4.5,
            linewidth=1.2,
            label=f"to backpropagation, {label}",
        )


def _runs(accuracies: Mapping[Method, Mapping[int, BySeed]]) -> list[float]:
    return [value for by_place in accuracies.values() for values in by_place.values() for value in values.values()]


def _limits(values: list[float]) -> tuple[float, float]:
    """Around all runs, with half their range (at least half a point) to spare."""
    low, high = min(values), max(values)
    spare = max(0.5, (high - low) / 2)
    return max(0.0, low - spare), min(100.0, high + spare)


def _signed(value: float, _: int) -> str:
    return f"{value:+.4g}".replace("-", MINUS) if value else "0"
