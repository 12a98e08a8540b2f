"""Draw timelines as Gantt charts: one lane per device, one box per event.

Simulated timelines, traces of real runs and schedules in the units of Table 1 are drawn by the same function, so that
they can be compared. Each box has a tooltip with its name and times, and shows its number if there is room.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Patch, Rectangle

from reproduce.drawing.timeline import Timeline
from reproduce.presentation import plots

#: Colour and legend of each kind of event. Other kinds are drawn like `wait`. The colours also differ in lightness, for
#: grey prints. Black text on each has a contrast ratio above 7, except on the updates, which have no text.
_KINDS = {
    "F": ("#a6cee8", "F forward"),
    "R": ("#fbdf9d", "R reconstruction"),
    "B": ("#79c79a", "B backward"),
    "U": ("#b3261e", "U update"),
    "wait": (plots.RULE, "wait"),
}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
# Lengths in points.
_LANE, _HEADER, _LEGEND = 21, 44, 32  # heights of a lane with its gap, of title and time axis, of the legend
_WIDTH, _SHARE = 675, 50  # widths of the time axis and of the column of idle times
_DIGIT = 5.5  # width of a digit


class Panel(NamedTuple):
    """A timeline to draw.

    Attributes:
        title: Heading.
        timeline: A simulated timeline, or the trace of a real run.
        span: Begin and end of the part to draw, in seconds.
        lanes: Names of the devices, such as "stages 0..3".

    """

    title: str
    timeline: Timeline
    span: tuple[float, float]
    lanes: Sequence[str]


def to_svg(panels: Sequence[Panel], *, key: str, title: str, unit: str | None = None) -> str:
    """Draw timelines, one below the other.

    Args:
        panels: The timelines.
        key: Name that is unique within the page.
        title: Accessible name.
        unit: Unit of the time axis, if not seconds.

    Returns:
        The text of an `<svg>` element, valid as a file and inside HTML.

    Raises:
        ValueError: If a span is empty.

    """
    heights = [_HEADER + _LANE * len(panel.lanes) for panel in panels]
    left = 20 + _DIGIT * max(len(name) for panel in panels for name in panel.lanes)
    width, height = left + _WIDTH + _SHARE, sum(heights) + _LEGEND
    with mpl.rc_context(plots.STYLE | {"axes.grid.axis": "x"}):
        drawing = Drawing(figsize=(width / 72, height / 72), dpi=72, facecolor="white")
        described = []
        for number, (panel, tall) in enumerate(zip(panels, heights, strict=True), start=1):
            bottom = height - sum(heights[:number])
            axes = drawing.add_axes((left / width, bottom / height, _WIDTH / width, (tall - _HEADER) / height))
            axes.set_title(panel.title, loc="left", x=(10 - left) / _WIDTH, pad=22)
            described.append(_draw(axes, panel, unit))
        kinds = {event.name[0] for panel in panels for event in panel.timeline.events}
        handles = [Patch(color=colour, label=meaning) for kind, (colour, meaning) in _KINDS.items() if kind in kinds]
        drawing.legend(handles=handles, loc="lower left", ncols=len(_KINDS), handlelength=1.2)
        return plots.to_svg(drawing, key=key, title=title, description=" ".join(described))


def _draw(axes: Axes, panel: Panel, unit: str | None) -> str:
    """Draw a timeline, and describe it in words."""
    (begin, end), devices = panel.span, range(len(panel.lanes))
    if not end > begin:
        raise ValueError(f"the span must end after it begins, got {begin} to {end} seconds")
    scale, unit = (1.0, unit) if unit else next((each for each in _UNITS if end - begin >= each[0]), _UNITS[-1])

    def times(since: float, until: float) -> str:
        return f"{since / scale:.4g} {unit} to {until / scale:.4g} {unit}"

    axes.set(xlim=(begin / scale, end / scale), ylim=(len(devices) - 0.5, -0.5))
    axes.set_yticks(devices, panel.lanes)
    axes.locator_params(axis="x", nbins=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.barh(devices, (end - begin) / scale, 0.76, begin / scale, color=plots.RULE, alpha=0.35, linewidth=0)
    write = partial(axes.text, ha="center", va="center_baseline")
    work, point = [], (end - begin) / _WIDTH
    for event in panel.timeline.events:
        (kind, stage, number), since, until = event.name, max(event.begin, begin), min(event.end, end)
        if since >= end or until <= begin:
            continue
        if kind != "wait":  # recorded waits are drawn, but count as idle time
            work.append(event._replace(begin=since, end=until))
        name = f"{kind}{number} of stage {stage}" if len(kind) == 1 else f"{kind}, stage {stage}"
        tooltip = f"{name}: {times(event.begin, event.end)}"
        width = max(until - since, 0.8 * point)
        box = Rectangle(
            (since / scale, event.device - 0.38),
            width / scale,
            0.76,
            facecolor=_KINDS.get(kind, _KINDS["wait"])[0],
            linewidth=0.5 * (width > 2 * point),
            clip_on=False,
            url=tooltip,
            zorder=1.5 if kind == "U" else 1,  # the next box begins where an update without duration is
        )
        axes.add_artist(box)  # not `add_patch`, which computes the limits of the axes again
        if kind in ("F", "B") and width > (_DIGIT * len(str(number)) + 2) * point:
            write((since + width / 2) / scale, event.device, str(number), color="black", size=8, url=tooltip, zorder=1)
    busy = Timeline(tuple(work), len(devices)).busy
    idle = [f"{1 - busy(device) / (end - begin):.0%}" for device in devices]
    beside = partial(write, color=plots.QUIET, ha="right", transform=axes.get_yaxis_transform())
    beside(-0.02, -0.9, unit)
    for y, words in ((-0.9, "idle"), *enumerate(idle)):
        beside(1 + (_SHARE - 10) / _WIDTH, y, words)
    shares = ", ".join(f"{name} {share}" for name, share in zip(panel.lanes, idle, strict=True))
    return (
        f"{panel.title}: one lane for each device, from {times(begin, end)}, with a box for everything that it does. "
        f"Share of that time in which it is idle: {shares}."
    )
