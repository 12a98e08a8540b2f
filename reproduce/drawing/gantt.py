"""Draw a timeline as a Gantt chart: one lane per device, one box per event.

Simulated timelines, traces of real runs and schedules in the units of Table 1 are drawn by the same function, so that
they can be compared. Each box has a tooltip with its name and times, and shows its number if there is room.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from xml.etree import ElementTree

from reproduce.drawing.svg import LANE, QUIET, RULE, canvas, line, rect, text
from reproduce.drawing.timeline import Event, Timeline

# The colours also differ in lightness, for grey prints. Dark text on each has a contrast ratio above 7, except on the
# updates, which have no text.
_FILL = {"F": "#a6cee8", "R": "#fbdf9d", "B": "#79c79a", "U": "#b3261e", "wait": RULE}

#: Legend of each kind of event. Other kinds are drawn like `wait`.
_MEANING = {
    "F": "forward",
    "R": "reconstruction",
    "B": "backward",
    "U": "update",
    "wait": "wait",
}

# Lengths in pixels.
_MARGIN, _HEADER, _LABEL, _SHARE, _LEGEND = 16, 62, 74, 66, 44
_WIDTH = 900  # width of the time axis
_HEIGHT, _GAP = 22, 6  # height of a lane, gap between lanes
_DIGIT = 6.5  # width of a digit in the font
_SVG = "http://www.w3.org/2000/svg"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def stack(drawings: Sequence[str], title: str) -> str:
    """Return drawings of `to_svg` one below the other, as one `<svg>` with the accessible name `title`."""
    panels = [ElementTree.fromstring(drawing) for drawing in drawings]
    heights = [float(panel.get("height", 0)) for panel in panels]
    width = max(float(panel.get("width", 0)) for panel in panels)
    root = canvas(width, sum(heights), title, " ".join(panel.findtext(f"{{{_SVG}}}desc", "") for panel in panels))
    del root.attrib["xmlns"]  # the panels declare the namespace
    for number, panel in enumerate(panels):
        panel.set("y", f"{sum(heights[:number]):g}")
        root.append(panel)
    ElementTree.register_namespace("", _SVG)
    for element in root.iter():
        element.tag = element.tag if element.tag.startswith("{") else f"{{{_SVG}}}{element.tag}"
    return ElementTree.tostring(root, encoding="unicode")


def to_svg(
    timeline: Timeline,
    *,
    title: str,
    span: tuple[float, float] | None = None,
    labels: Mapping[int, str] | None = None,
    unit: str | None = None,
) -> str:
    """Draw a timeline.

    Args:
        timeline: A simulated timeline, or the trace of a real run.
        title: Heading and accessible name.
        span: Begin and end of the part to draw, in seconds. The default is the whole timeline.
        labels: Names of the lanes by device, such as "stages 0..3". The default is "device 0" and so on.
        unit: Unit of the time axis, if not seconds.

    Returns:
        The text of an `<svg>` element, valid as a file and inside HTML.

    Raises:
        ValueError: If the span is empty.

    """
    events = timeline.events
    begin, end = span or (
        min((event.begin for event in events), default=0.0),
        max((event.end for event in events), default=1.0),
    )
    if not end > begin:
        raise ValueError(f"the span must end after it begins, got {begin} to {end} seconds")
    return _GanttDrawing(timeline, title, begin, end, labels or {}, unit).svg()


class _GanttDrawing:
    def __init__(
        self, timeline: Timeline, title: str, begin: float, end: float, labels: Mapping[int, str], unit: str | None
    ) -> None:
        self.timeline, self.title, self.labels = timeline, title, labels
        self.begin, self.end = begin, end
        self.events = events = [event for event in timeline.events if event.end > begin and event.begin < end]
        self.left = _MARGIN + max([_LABEL, *(round(_DIGIT * len(label)) + 10 for label in labels.values())])
        # Recorded waits are drawn, but count as idle time.
        work = [Event(e.device, e.name, max(e.begin, begin), min(e.end, end)) for e in events if e.name[0] in "FRBWU"]
        at_work = Timeline(tuple(work), timeline.devices)
        self.busy = [at_work.busy(device) for device in range(timeline.devices)]
        self.unit, self.unit_name = (
            (1.0, unit) if unit is not None else next((unit for unit in _UNITS if end - begin >= unit[0]), _UNITS[-1])
        )

    def svg(self) -> str:
        width = self.left + _WIDTH + _SHARE + _MARGIN
        height = _HEADER + self.timeline.devices * (_HEIGHT + _GAP) + _LEGEND
        root = canvas(width, height, self.title, self._description())
        text(root, _MARGIN, 24, self.title, font_size="15", font_weight="600")
        self._grid(root)
        for event in self.events:
            self._box(root, event)
        self._legend(root, height - 16)
        return ElementTree.tostring(root, encoding="unicode")

    def _description(self) -> str:
        """Describe the picture in words, for screen readers."""
        idle = ", ".join(f"{self._name(device)} {self._idle(device):.0%}" for device in range(self.timeline.devices))
        return (
            f"One lane for each device, from {self._time(self.begin)} to {self._time(self.end)}, with a box for "
            f"everything that it does. Share of that time in which it is idle: {idle}."
        )

    def _grid(self, root: ElementTree.Element) -> None:
        for device in range(self.timeline.devices):
            y = self._y(device)
            rect(root, self.left, y, _WIDTH, _HEIGHT, fill=LANE)
            text(root, _MARGIN, y + 15, self._name(device))
            edge = self.left + _WIDTH + _SHARE
            text(root, edge, y + 15, f"{self._idle(device):.0%}", fill=QUIET, text_anchor="end")
        top, bottom = self._y(0) - 4, self._y(self.timeline.devices) - _GAP + 4
        step = _round_step((self.end - self.begin) / 8)
        number = ceil(self.begin / step)
        while number * step <= self.end * (1 + 1e-12):
            x = self._x(number * step)
            line(root, x, top, x, bottom, stroke=RULE)
            text(root, x, top - 6, f"{number * step / self.unit:g}", fill=QUIET, text_anchor="middle")
            number += 1
        text(root, _MARGIN, top - 6, self.unit_name, fill=QUIET)
        text(root, self.left + _WIDTH + _SHARE, top - 6, "idle", fill=QUIET, text_anchor="end")

    def _box(self, root: ElementTree.Element, event: Event) -> None:
        kind, stage, number = event.name
        x, end = self._x(max(event.begin, self.begin)), self._x(min(event.end, self.end))
        y, width = self._y(event.device), max(round(end - x, 1), 0.5)
        group = ElementTree.SubElement(root, "g")
        what = f"{kind}{number} of stage {stage}" if len(kind) == 1 else f"{kind}, stage {stage}"
        tooltip = f"{what}: {self._time(event.begin)} to {self._time(event.end)}"
        ElementTree.SubElement(group, "title").text = tooltip
        outline = {"stroke": "#ffffff", "stroke_width": "0.5"} if width > 2 else {}
        rect(group, round(x, 1), y, width, _HEIGHT, fill=_FILL.get(kind, _FILL["wait"]), **outline)
        if kind in ("F", "B") and width > _DIGIT * len(str(number)) + 2:
            text(group, round(x + width / 2, 1), y + 15, f"{number}", text_anchor="middle")

    def _legend(self, root: ElementTree.Element, y: float) -> None:
        x: float = _MARGIN
        kinds = {event.name[0] for event in self.events}
        for kind, meaning in _MEANING.items():
            if kind in kinds:
                rect(root, x, y - 11, 16, 14, fill=_FILL[kind])
                text(root, x + 21, y, meaning if kind == meaning else f"{kind} {meaning}")
                x += 21 + _DIGIT * (len(meaning) + 2) + 14
        others = sorted(kinds - _MEANING.keys())
        if others:
            rect(root, x, y - 11, 16, 14, fill=_FILL["wait"])
            text(root, x + 21, y, ", ".join(others))

    def _name(self, device: int) -> str:
        return self.labels.get(device, f"device {device}")

    def _idle(self, device: int) -> float:
        return 1 - self.busy[device] / (self.end - self.begin)

    def _time(self, seconds: float) -> str:
        return f"{seconds / self.unit:.4g} {self.unit_name}"

    def _x(self, seconds: float) -> float:
        return self.left + _WIDTH * (seconds - self.begin) / (self.end - self.begin)

    def _y(self, device: int) -> int:
        return _HEADER + device * (_HEIGHT + _GAP)


def _round_step(least: float) -> float:
    """Return the smallest number of the form 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 10.0 ** floor(log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
