"""A schedule as a picture: a lane a stage, a column a tick.

Drawings of pipelines usually come from a second implementation of the schedule, and are then wrong just where it
differs from the first (the last rank, the drain). This one reads a `Schedule` object and knows no rule of any method,
so what is seen is what was executed.

The SVG is self-contained and may stand in a page any number of times (`petra_core.drawing.svg`). Widths within a tick
are the units of Table 1 (F 1, R 1, B 2), and each kind has its own place there, so the picture reads without its
colours too. Every turn has its actions as a tooltip.
"""

from itertools import pairwise
from xml.etree import ElementTree

from petra_core.drawing.svg import INK, LANE, QUIET, RULE, canvas, line, rect, text
from petra_core.prediction.units import UNITS
from petra_core.schedule import Kind, Schedule, Turn

__all__ = ["FILL", "to_svg"]

_MEANING = {
    Kind.FORWARD: "forward",
    Kind.RECONSTRUCT: "reconstruct",
    Kind.BACKWARD: "backward",
    Kind.UPDATE: "update",
}
# Apart in lightness too, so that a grey print keeps them apart; dark text on each has a contrast above 7.
FILL = {Kind.FORWARD: "#a6cee8", Kind.RECONSTRUCT: "#fbdf9d", Kind.BACKWARD: "#79c79a", Kind.UPDATE: "#b3261e"}

# Lengths in pixels.
_MARGIN, _HEADER, _LABEL, _LEGEND = 16, 62, 74, 44
_HEIGHT, _GAP = 26, 16  # of a lane, and between lanes, where messages run
_PAD = 4  # between a tick's boxes and the rule to the next tick
_UPDATE = 4  # width of the bar of an update


def to_svg(schedule: Schedule, *, highlight: int | None = None, title: str | None = None) -> str:
    """Draw a schedule.

    Args:
        schedule: generated or recorded; `schedule.window(...)` picks the ticks of a long one.
        highlight: a micro-batch whose way is traced: its boxes outlined, its messages drawn from stage to stage.
        title: heading and accessible name; the method, J and k unless given.

    Returns:
        The text of an `<svg>` element, of use as a file and inside HTML.

    Raises:
        ValueError: the micro-batch to highlight is not in the schedule.

    """
    return _ScheduleDrawing(schedule, highlight, title).svg()


class _ScheduleDrawing:
    def __init__(self, schedule: Schedule, highlight: int | None, title: str | None) -> None:
        self.schedule = schedule
        self.highlight = highlight
        replicas = f", replicas {', '.join(map(str, schedule.replicas))}" if schedule.replicas else ""
        self.title = title or f"{schedule.method.title}, J = {schedule.stages}, k = {schedule.accumulation}{replicas}"
        actions = [action for tick in schedule.ticks for turn in tick for action in turn]
        self.kinds = [kind for kind in Kind if any(action.kind is kind for action in actions)]
        micro_batches = sorted({action.number for action in actions if action.kind is not Kind.UPDATE})
        if highlight is not None and highlight not in micro_batches:
            raise ValueError(f"micro-batch {highlight} cannot be highlighted: {_range(micro_batches)} in this schedule")
        digits = len(str(micro_batches[-1])) if micro_batches else 1
        self.unit = 9 + 7 * digits  # wide enough for the longest number
        self.offset, place = {}, _PAD
        for kind in self.kinds:
            self.offset[kind] = place
            place += self._width(kind)
        self.column = place + _PAD

    def svg(self) -> str:
        width = _MARGIN + _LABEL + max(self.column * len(self.schedule.ticks), 260) + _MARGIN
        height = _HEADER + self.schedule.stages * (_HEIGHT + _GAP) - _GAP + _LEGEND
        root = canvas(width, height, self.title, self._description())
        text(root, _MARGIN, 24, self.title, font_size="15", font_weight="600")
        self._grid(root)
        for column, tick in enumerate(self.schedule.ticks):
            for stage, turn in enumerate(tick):
                if turn:
                    self._turn(root, column, stage, turn)
        if self.highlight is not None:
            self._messages(root)
        self._legend(root, height - 16)
        return ElementTree.tostring(root, encoding="unicode")

    def _description(self) -> str:
        """The picture in words, for a reader who cannot see it."""
        schedule = self.schedule
        ticks = len(schedule.ticks)
        span = f"ticks {schedule.first_tick} to {schedule.first_tick + ticks - 1}" if ticks else "no ticks"
        turns = [turn for tick in schedule.ticks for turn in tick]
        traced = f" The way of micro-batch {self.highlight} is traced." if self.highlight is not None else ""
        return (
            f"Schedule of {schedule.method.title}, {schedule.stages} stages, k = {schedule.accumulation}, {span}: "
            f"one row for each stage, stage 0 at the top, one column for each tick. "
            f"Stages are at work in {sum(map(bool, turns))} of {len(turns)} turns.{traced}"
        )

    def _grid(self, root: ElementTree.Element) -> None:
        left, ticks = _MARGIN + _LABEL, len(self.schedule.ticks)
        names = {0: "stem", self.schedule.stages - 1: "head"}
        for stage in range(self.schedule.stages):
            rect(root, left, self._y(stage), self.column * ticks, _HEIGHT, fill=LANE)
            name = f"stage {stage}"
            text(root, _MARGIN, self._y(stage) + (12 if stage in names else 17), name)
            if stage in names:
                text(root, _MARGIN, self._y(stage) + 24, names[stage], fill=QUIET, font_size="10")
        top, bottom = self._y(0) - 6, self._y(self.schedule.stages - 1) + _HEIGHT + 6
        for column in range(ticks + 1):
            x = left + column * self.column
            if ticks:
                line(root, x, top, x, bottom, stroke=RULE)
            if column < ticks:
                label = f"{self.schedule.first_tick + column}"
                text(root, x + self.column / 2, top - 6, label, fill=QUIET, text_anchor="middle")
        text(root, _MARGIN, top - 6, "tick", fill=QUIET)

    def _turn(self, root: ElementTree.Element, column: int, stage: int, turn: Turn) -> None:
        group = ElementTree.SubElement(root, "g")
        tick = self.schedule.first_tick + column
        ElementTree.SubElement(group, "title").text = f"tick {tick}, stage {stage}: {' '.join(map(str, turn))}"
        # The traced micro-batch last, so that its outline lies over its neighbours.
        for action in sorted(turn, key=lambda action: self._is_traced(action.kind, action.number)):
            x, y, width = self._x(column, action.kind), self._y(stage), self._width(action.kind)
            if action.kind is Kind.UPDATE:
                rect(group, x, y, width, _HEIGHT, fill=FILL[action.kind])
                continue
            traced = self._is_traced(action.kind, action.number)
            outline = {"stroke": INK, "stroke_width": "2"} if traced else {"stroke": "#ffffff", "stroke_width": "1"}
            rect(group, x, y, width, _HEIGHT, fill=FILL[action.kind], **outline)
            weight = "700" if traced else "400"
            text(group, x + width / 2, y + 17, f"{action.number}", text_anchor="middle", font_weight=weight)

    def _messages(self, root: ElementTree.Element) -> None:
        """The way of the traced micro-batch, from box to box: activations down, gradients up."""
        stops = [
            (column, stage, action.kind)
            for column, tick in enumerate(self.schedule.ticks)
            for stage, turn in enumerate(tick)
            for action in turn
            if self._is_traced(action.kind, action.number) and action.kind is not Kind.RECONSTRUCT
        ]
        group = ElementTree.SubElement(root, "g", {"fill": "none", "stroke": INK, "stroke-width": "1.5"})
        for (column, stage, kind), (next_column, next_stage, next_kind) in pairwise(stops):
            if stage == next_stage:  # within the head
                continue
            down = next_stage > stage
            x = self._x(column, kind) + self._width(kind) / 2
            # A gradient's message goes to the first box of the backward, the reconstruction where there is one before.
            together = Kind.RECONSTRUCT in self.kinds and not self.schedule.method.overlapped
            entry = Kind.RECONSTRUCT if together and next_kind is Kind.BACKWARD else next_kind
            next_x = self._x(next_column, entry) + self._width(entry) / 2
            y = self._y(stage) + (_HEIGHT if down else 0)
            next_y = self._y(next_stage) + (-1 if down else _HEIGHT + 1)  # up to the outline, which is 2 wide
            turn = _GAP if down else -_GAP
            path = f"M{x:g} {y} C{x:g} {y + turn} {next_x:g} {next_y - turn} {next_x:g} {next_y}"
            ElementTree.SubElement(group, "path", {"d": path, "stroke-opacity": "0.75"})
            tip = 6 if down else -6
            arrow = f"M{next_x - 3.5:g} {next_y - tip} L{next_x:g} {next_y} L{next_x + 3.5:g} {next_y - tip} Z"
            ElementTree.SubElement(group, "path", {"d": arrow, "fill": INK, "stroke": "none"})

    def _legend(self, root: ElementTree.Element, y: float) -> None:
        x: float = _MARGIN
        for kind in self.kinds:
            width = _UPDATE if kind is Kind.UPDATE else 16
            rect(root, x, y - 11, width, 14, fill=FILL[kind])
            label = f"{kind.value} {_MEANING[kind]}"
            text(root, x + width + 5, y, label)
            x += width + 5 + 6.4 * len(label) + 14
        if self.highlight is not None:
            line(root, x, y - 4, x + 18, y - 4, stroke=INK)
            text(root, x + 23, y, f"messages of micro-batch {self.highlight}")

    def _is_traced(self, kind: Kind, number: int) -> bool:
        return kind is not Kind.UPDATE and number == self.highlight

    def _width(self, kind: Kind) -> int:
        return _UPDATE if kind is Kind.UPDATE else UNITS[kind] * self.unit

    def _x(self, column: int, kind: Kind) -> int:
        return _MARGIN + _LABEL + column * self.column + self.offset[kind]

    def _y(self, stage: int) -> int:
        return _HEADER + stage * (_HEIGHT + _GAP)


def _range(numbers: list[int]) -> str:
    return f"there are the micro-batches {numbers[0]} to {numbers[-1]}" if numbers else "there are no micro-batches"
