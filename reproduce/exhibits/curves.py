"""The accuracies of an experiment as drawings: where every run ended, and how it got there.

The usual picture, bars with error bars from 0, hides both what differs (the last points of a hundred) and how little
is known (two dots make a confident bar). So here every run is a dot, and the band around a curve is the range of the
runs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits.experiments import Experiment, Network
from reproduce.show import plots
from reproduce.show.content import Figure, short_title

if TYPE_CHECKING:
    from pandas import DataFrame


def dots(experiment: Experiment) -> Iterator[Figure]:
    """One panel a network and k, one row a method, one dot a seed, a bar for the mean."""
    networks, ks = experiment.networks, experiment.accumulations
    shown = [method for method in methods.KNOWN if any(method is m for _, m, _ in experiment.groups)]
    values = {key: list(group.values("test_accuracy").values()) for key, group in experiment.groups.items()}
    everything = [value for found in values.values() for value in found]
    if not everything:
        return
    title = "Test accuracy of every run"
    description = (
        "One panel for each network and k, one row for each method, one dot for each seed. "
        f"{len(everything)} runs between {min(everything):.1f} and {max(everything):.1f} %."
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 0.5 + 1.45 * len(networks)), layout="constrained")
        panels = drawing.subplots(len(networks), len(ks), sharex=True, sharey=True, squeeze=False)
        for line, network in zip(panels, networks, strict=True):
            for panel, k in zip(line, ks, strict=True):
                for row, method in enumerate(shown):
                    found = values.get((network, method, k), [])
                    colour = plots.COLOURS[method]
                    panel.plot(
                        found, [row] * len(found), "o", color=colour, markersize=4.5, alpha=0.75, markeredgewidth=0
                    )
                    if found:
                        panel.plot([sum(found) / len(found)] * 2, [row - 0.36, row + 0.36], color=colour, linewidth=1.4)
                panel.grid(visible=True, axis="x")
                panel.grid(visible=False, axis="y")
                panel.tick_params(axis="y", length=0)
            line[0].set(
                ylim=(len(shown) - 0.4, -0.6), yticks=range(len(shown)), yticklabels=[short_title(m) for m in shown]
            )
            line[-1].annotate(
                network.title.replace(", ", "\n"),
                (1.02, 0.5),
                xycoords="axes fraction",
                rotation=-90,
                va="center",
                fontsize=8.5,
                color=plots.QUIET,
            )
        for panel, k in zip(panels[0], ks, strict=True):
            panel.set_title(f"k = {k}")
        drawing.supxlabel("test accuracy, %", fontsize=9)
        sns.despine(drawing, left=True)
        key = f"dots-{experiment.key}"
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = f"{title} ({experiment.described}). Dot: a seed; bar: mean."
    yield Figure(key, title, description, svg, caption)


def lines(experiment: Experiment) -> Iterator[Figure]:
    """Test accuracy by epoch: one figure a network, one panel a k, one line a method."""
    for network in experiment.networks:
        points = pd.DataFrame(
            [
                {
                    "k": k,
                    "method": method.name,
                    "seed": run.cell.seed,
                    "epoch": m["epoch"],
                    "accuracy": m["test_accuracy"],
                }
                for (n, method, k), group in experiment.groups.items()
                if n == network
                for run in group.runs
                for m in run.metrics
            ]
        )
        if not points.empty:
            yield _curve(experiment, network, points)


def _curve(experiment: Experiment, network: Network, points: "DataFrame") -> Figure:
    ks = sorted(points["k"].unique())
    shown = [method for method in methods.KNOWN if method.name in set(points["method"])]
    title = f"Learning curves of {network.title}"
    ends = points[points["epoch"] == points["epoch"].max()].groupby(["k", "method"])["accuracy"].mean()
    description = "Test accuracy by epoch, one panel for each k, one line for each method. " + " ".join(
        f"k = {k}: "
        + ", ".join(f"{m.title} ends at {ends[k, m.name]:.1f} %" for m in shown if (k, m.name) in ends.index)
        + "."
        for k in ks
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 3.1), layout="constrained")
        panels = drawing.subplots(1, len(ks), sharey=True, squeeze=False)[0]
        for panel, k in zip(panels, ks, strict=True):
            sns.lineplot(
                points[points["k"] == k],
                x="epoch",
                y="accuracy",
                hue="method",
                style="method",
                palette={method.name: colour for method, colour in plots.COLOURS.items()},
                dashes={method.name: dashes or "" for method, dashes in plots.DASHES.items()},
                errorbar=("pi", 100),
                err_kws={"alpha": 0.15, "linewidth": 0},
                legend=False,
                ax=panel,
            )
            panel.set(title=f"k = {k}", xlabel="epoch", ylabel="test accuracy, %")
            panel.xaxis.get_major_locator().set_params(integer=True)
        sns.despine(drawing)
        drawing.legend(handles=[_legend_line(method) for method in shown], loc="outside lower center", ncols=len(shown))
        key = f"curves-{experiment.key}-{network.key}"
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = f"{title} ({experiment.described}). Line: mean over seeds; band: their range."
    return Figure(key, title, description, svg, caption)


def _legend_line(method: Method) -> Line2D:
    dashes = plots.DASHES[method]
    return Line2D(
        [], [], color=plots.COLOURS[method], linestyle=(0, dashes) if dashes else "-", label=short_title(method)
    )
