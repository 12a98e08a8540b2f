"""A drawing of accuracy against k: curves with bands, every seed a dot, and the paired differences beside it.

With three seeds the band of a mean can be wider than everything else in the picture, and a picture scaled to it shows
nothing. So the left panel is scaled to the runs, and a band that is wider is cut at its edge.
"""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from petra_core import methods
from petra_core.methods import Method
from reproduce.statistics import MARGIN_POINTS, Estimate, estimate
from reproduce.tables import plots
from reproduce.tables.content import MINUS, short_title
from reproduce.tables.deferred import sns

BySeed = Mapping[int, float]
_APART = {methods.PETRA: 1.04, methods.BACKPROPAGATION: 1 / 1.04}  # factors of k, so that dots do not hide each other
_OFFSETS = (1 / 1.06, 1.06)
_MARKERS = ("o", "s")


def draw(
    *,
    key: str,
    title: str,
    description: str,
    accuracies: Mapping[Method, Mapping[int, BySeed]],
    baseline: BySeed,
    labels: Mapping[str, str],
    differences: Mapping[str, Mapping[int, Estimate | None]],
) -> str:
    """An SVG of two panels.

    Args:
        key: unique within the page.
        title: accessible name.
        description: what can be seen, in words.
        accuracies: by method, k and seed, percent.
        baseline: of runs that have no k, by seed, percent.
        labels: what `differences` are to, in words; the first is the backpropagation of `accuracies`, the second the
            baseline.
        differences: of PETRA to each of `labels`, by k, points.

    """
    with plots.style():
        drawing = Drawing(figsize=(10.4, 3.9), layout="constrained")
        left, right = drawing.subplots(1, 2, width_ratios=(3, 2))
        matched, apart = labels.values()
        _baseline(left, baseline, f"{methods.BACKPROPAGATION.title}, {apart}")
        for method, by_k in accuracies.items():
            words = f", {matched}" if method is methods.BACKPROPAGATION else ""
            _curve(left, method, short_title(method) + words, by_k)
        _differences(right, {labels[reference]: by_k for reference, by_k in differences.items()})
        left.set(ylabel="test accuracy, %", ylim=_limits([*_runs(accuracies), *baseline.values()]))
        right.set(ylabel="PETRA less backpropagation, points")
        right.yaxis.set_major_formatter(_signed)
        ks = sorted({k for by_k in accuracies.values() for k in by_k})
        for panel in (left, right):
            panel.set(xscale="log", xlabel="k", xlim=(ks[0] / 1.25, ks[-1] * 1.25))
            panel.xaxis.set_major_locator(FixedLocator(ks))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(ScalarFormatter())
            if panel.get_legend_handles_labels()[0]:
                panel.legend(loc="best", fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")
        sns.despine(drawing)
        return plots.to_svg(drawing, key=key, title=title, description=description)


def _curve(panel: Axes, method: Method, label: str, by_k: Mapping[int, BySeed]) -> None:
    means = {k: estimate(list(values.values())) for k, values in sorted(by_k.items()) if values}
    colour, apart = plots.COLOURS[method], _APART[method]
    if not means:
        return
    bands = [(k, m.low, m.high) for k, m in means.items() if m.low is not None and m.high is not None]
    if bands:
        ks, low, high = zip(*bands, strict=True)
        panel.fill_between(ks, low, high, color=colour, alpha=0.13, linewidth=0)
    panel.plot(list(means), [mean.mean for mean in means.values()], color=colour, label=label)
    for k in means:
        values = list(by_k[k].values())
        panel.plot([k * apart] * len(values), values, "o", color=colour, markersize=4, alpha=0.8, markeredgewidth=0)


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
    for (label, by_k), offset, marker in zip(differences.items(), _OFFSETS, _MARKERS, strict=True):
        found = {k: difference for k, difference in by_k.items() if difference is not None}
        if not found:
            continue
        panel.errorbar(
            [k * offset for k in found],
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
    return [value for by_k in accuracies.values() for values in by_k.values() for value in values.values()]


def _limits(values: list[float]) -> tuple[float, float]:
    """Around all runs, with half their range (at least half a point) to spare."""
    low, high = min(values), max(values)
    spare = max(0.5, (high - low) / 2)
    return max(0.0, low - spare), min(100.0, high + spare)


def _signed(value: float, _: int) -> str:
    return f"{value:+.4g}".replace("-", MINUS) if value else "0"
