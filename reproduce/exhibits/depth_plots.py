"""Drawings of the study of depth: accuracy, and errors of rebuilt inputs, against the number of stages.

Depths double from one to the next and errors span seven powers of ten, so both have logarithmic axes. Every run is a
mark; what is broken is a cross and not a low accuracy among others.
"""

from collections.abc import Iterator, Sequence

import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from petra_core import methods
from reproduce.exhibits.depth_runs import Depths, Place
from reproduce.exhibits.divergence import broken
from reproduce.exhibits.gradients import over_seeds
from reproduce.exhibits.sheets import described
from reproduce.grids.plans.depth import COMPARED
from reproduce.show import plots
from reproduce.show.content import Figure, short_title

BOTTOM = 1
CAUSES: dict[str, tuple[str, str, tuple[float, Sequence[float]]]] = {  # title, colour, dashes
    "training": ("training (newer weights)", plots.COLOURS[methods.PETRA], (0, ())),
    "rounding_bfloat16": ("rounding, bfloat16 streams", plots.COLOURS[methods.DSP], (0, (4, 1.5))),
    "rounding": ("rounding, float32", plots.COLOURS[methods.BACKPROPAGATION], (0, (1, 1))),
}


def accuracy(found: Depths, words: str) -> Iterator[Figure]:
    """One panel for each k with a finished run, one line for each method; nothing if there is none."""
    finished = {place.k for place, method in found.planned if found.accuracies(place, method)}
    ks = [k for k in found.accumulations if k in finished]
    if not ks:
        return
    subject = "Accuracy against depth"
    title = f"{subject}, scale “{found.scale}”"
    key = f"depth-{found.scale}-accuracy"
    description = f"Test accuracy by number of stages J, a panel for each k, a line for each method. {words}"
    with plots.style():
        drawing = Drawing(figsize=(10.4, 3.3), layout="constrained")
        panels = drawing.subplots(1, len(ks), sharey=True, squeeze=False)[0]
        for panel, k in zip(panels, ks, strict=True):
            places = [place for place in found.places if place.k == k]
            for number in range(len(COMPARED)):
                _accuracies(panel, found, places, number)
            panel.set(title=f"k = {k}")
            _depth_axis(panel, found)
        panels[0].set_ylabel("test accuracy, %")
        lines = [
            Line2D([], [], color=plots.COLOURS[m], linestyle=(0, plots.DASHES[m]), label=short_title(m))
            for m in COMPARED
        ]
        lines.append(Line2D([], [], color=plots.INK, marker="x", linestyle="", markersize=6, label="broken"))
        drawing.legend(handles=lines, loc="outside lower center", ncols=len(lines))
        sns.despine(drawing)
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = (
        f"{subject} ({described(found.example)}). Line: mean over the seeds; dot: a run; cross: a broken run. One "
        "whose loss was not finite has no accuracy, and no mark."
    )
    yield Figure(key, title, description, svg, caption)


def _accuracies(panel: Axes, found: Depths, places: list[Place], number: int) -> None:
    method = COMPARED[number]
    colour = plots.COLOURS[method]
    shift = 1 + 0.012 * (number - 1)  # so that equal accuracies can be told apart
    means = [(p.stages, mean.mean) for p in places if (mean := found.accuracy(p, method)) is not None]
    panel.plot(
        [j * shift for j, _ in means], [mean for _, mean in means], color=colour, linestyle=(0, plots.DASHES[method])
    )
    for place in places:
        for run in found.runs[place, method].values():
            if run.done:
                marker, size = ("x", 6) if broken(run) else ("o", 3.5)
                value = run.result["test_accuracy"]
                panel.plot([place.stages * shift], [value], color=colour, marker=marker, markersize=size, alpha=0.8)


def errors(found: Depths, words: str) -> Iterator[Figure]:
    """Above, the error at the bottom against depth; below, the error along each chain; nothing if none is measured."""
    ks = [k for k in found.accumulations if any(found.errors(p) for p in found.places if p.k == k)]
    if not ks:
        return
    subject = "Errors of rebuilt inputs"
    title = f"{subject}, scale “{found.scale}”"
    key = f"depth-{found.scale}-errors"
    description = (
        "Upper panels: relative error of the input that the lowest reversible stage rebuilds, by number of stages J. "
        f"Lower panels: the error along each chain, from the head down. A column for each k. {words}"
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 5.6), layout="constrained")
        rows = drawing.subplots(2, len(ks), sharey="row", squeeze=False)
        depths = sorted({place.stages for place in found.places})
        colours = dict(zip(depths, sns.color_palette("viridis_r", len(depths) + 1)[1:], strict=True))
        for upper, lower, k in zip(*rows, ks, strict=True):
            places = [place for place in found.places if place.k == k and found.errors(place)]
            _at_the_bottom(upper, found, places)
            for place in places:
                _along(lower, found, place, colours[place.stages])
            upper.set(title=f"k = {k}", yscale="log")
            _depth_axis(upper, found)
            lower.set(yscale="log", xscale="log", xlabel="inversions since the head")
            lower.xaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
            lower.xaxis.set_minor_formatter(ticker.NullFormatter())
            lower.legend(title="J", fontsize=8)
        rows[0][0].set_ylabel("error at the bottom")
        rows[1][0].set_ylabel("error of a stage, training")
        lines = [Line2D([], [], color=c, linestyle=dashes, label=name) for name, c, dashes in CAUSES.values()]
        drawing.legend(handles=lines, loc="outside lower center", ncols=len(lines))
        sns.despine(drawing)
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = (
        f"{subject} ({described(found.example)}). Relative errors, means over the micro-batches that were followed. "
        "Above: line, mean over the seeds; dot, a run. Below: mean over the seeds."
    )
    yield Figure(key, title, description, svg, caption)


def _at_the_bottom(panel: Axes, found: Depths, places: list[Place]) -> None:
    for cause, (_, colour, dashes) in CAUSES.items():
        values = {
            place.stages: [p[f"{cause}/input"][BOTTOM] for p in found.errors(place).values() if f"{cause}/input" in p]
            for place in places
        }
        defined = {j: [value for value in own if value is not None] for j, own in values.items()}
        known = {j: own for j, own in defined.items() if own}
        panel.plot(list(known), [sum(own) / len(own) for own in known.values()], color=colour, linestyle=dashes)
        dots = [(j, value) for j, own in known.items() for value in own]
        panel.plot(*zip(*dots, strict=True), "o", color=colour, markersize=3.5)


def _along(panel: Axes, found: Depths, place: Place, colour: tuple[float, ...]) -> None:
    profiles = found.errors(place)
    points = []
    for stage in range(place.stages - 2, 0, -1):
        mean = over_seeds({seed: profile["training/input"][stage] for seed, profile in profiles.items()})
        if mean is not None and mean.mean > 0:
            points.append((place.stages - 1 - stage, mean.mean))
    panel.plot(
        *zip(*points, strict=True), color=colour, label=str(place.stages), marker="o", markersize=2, linewidth=1.2
    )


def _depth_axis(panel: Axes, found: Depths) -> None:
    """All depths of the study, run or not, so that panels can be compared."""
    depths = sorted({place.stages for place in found.places})
    panel.set(xscale="log", xlabel="stages J", xlim=(depths[0] / 1.15, depths[-1] * 1.15))
    panel.set_xticks(depths, [str(stages) for stages in depths])
    panel.xaxis.set_minor_locator(ticker.NullLocator())
