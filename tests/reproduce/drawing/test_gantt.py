"""Test waits, clipping and the description of the picture. `test_docs` compares the committed picture byte for byte."""

import re
from xml.etree import ElementTree

import pytest

from reproduce.drawing.gantt import Panel, to_svg
from reproduce.drawing.timeline import Event, Timeline

SVG = "{http://www.w3.org/2000/svg}"
LEFT, WIDTH = 64.0, 675  # of the boxes of lanes with names of eight characters


def draw(timeline: Timeline, begin: float, end: float, title: str = "a title") -> str:
    lanes = [f"device {device}" for device in range(timeline.devices)]
    return to_svg([Panel(title, timeline, (begin, end), lanes)], key="drawing", title=title)


def boxes(svg: str) -> dict[str, ElementTree.Element]:
    """Return the bars by tooltip."""
    found = [(group.findtext(f"{SVG}title"), group) for group in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    return {name: group.find(f"{SVG}path") for name, group in found if name}


def span(box: ElementTree.Element) -> tuple[float, float]:
    """Return x and width of a bar."""
    corners = [float(number) for number in re.findall(r"[\d.]+", box.get("d", ""))][::2]
    return min(corners), max(corners) - min(corners)


def test_waits_are_drawn_but_not_counted_as_work() -> None:
    """Waits are drawn with a label, and do not count as busy time."""
    timeline = Timeline((Event(0, ("wait", 1, 3), 0.0, 1.0), Event(0, ("F", 1, 3), 1.0, 2.0)), 1)
    svg = draw(timeline, 0, 2)
    assert list(boxes(svg)) == ["wait, stage 1: 0 s to 1 s", "F3 of stage 1: 1 s to 2 s"]
    words = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"device 0", "50%"} <= set(words)
    assert words[-2:] == ["F forward", "wait"]


def test_span_is_clipped_and_empty_timeline_draws_nothing() -> None:
    """Draw 4 to 9 ms. Idle time is that of the drawn part."""
    timeline = Timeline((Event(0, ("F", 0, 0), 0.0, 5e-3), Event(0, ("B", 0, 0), 8e-3, 8.5e-3)), 2)
    svg = draw(timeline, 4e-3, 9e-3, "a < b")
    assert span(boxes(svg)["F0 of stage 0: 0 ms to 5 ms"]) == (LEFT, WIDTH / 5)
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "a < b"
    assert (root.findtext(f"{SVG}desc") or "").endswith("idle: device 0 70%, device 1 100%.")
    assert not boxes(draw(Timeline((), 2), 0, 1))
    with pytest.raises(ValueError, match=r"must end after it begins, got 1\.0 to 1\.0 seconds"):
        draw(Timeline((), 1), 1.0, 1.0)
