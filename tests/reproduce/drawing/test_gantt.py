"""Test that the picture contains exactly the given events, at their places and times."""

import re
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from reproduce.drawing.gantt import Panel, to_svg
from reproduce.drawing.timeline import Event, Timeline
from reproduce.modelling.simulation import make_schedule, simulate

SVG = "{http://www.w3.org/2000/svg}"
UNIT = Cost(forward=1e-3, backward=2e-3, update=0.5e-3)


LEFT, WIDTH, TOP, LANE = 64.0, 675, 44, 21  # of the boxes of three lanes with names of eight characters


def draw(timeline: Timeline, begin: float, end: float, title: str = "a title") -> str:
    lanes = [f"device {device}" for device in range(timeline.devices)]
    return to_svg([Panel(title, timeline, (begin, end), lanes)], key="drawing", title=title)


def groups(svg: str) -> list[tuple[str, ElementTree.Element]]:
    """Return the groups with a tooltip, each after its tooltip."""
    found = [(group.findtext(f"{SVG}title"), group) for group in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    return [(name, group) for name, group in found if name]


def boxes(svg: str) -> dict[str, ElementTree.Element]:
    """Return the bars by tooltip."""
    return {name: group.find(f"{SVG}path") for name, group in groups(svg)}


def numbers(box: ElementTree.Element) -> tuple[float, ...]:
    """Return x, y, width and height of a bar."""
    corners = [float(number) for number in re.findall(r"[\d.]+", box.get("d", ""))]
    x, y = min(corners[::2]), min(corners[1::2])
    return x, y, max(corners[::2]) - x, max(corners[1::2]) - y


def colour(svg: str, box: ElementTree.Element) -> str:
    look = re.search(rf"\.{box.get('class')}\{{(.*?)\}}", svg)
    return re.findall(r"fill:(#\w+)", look[1] if look else box.get("style", ""))[0]


def test_events_are_drawn_in_lane_with_duration() -> None:
    """Every event is drawn in the lane of its device, with its start and duration to scale."""
    timeline = simulate(make_schedule(methods.PETRA, (1, 1, 1), 6), [UNIT] * 3)
    svg = draw(timeline, 0, timeline.seconds)
    drawn = boxes(svg)
    assert len(drawn) == len(timeline.events)
    for event in timeline.events:
        kind, stage, number = event.name
        (name,) = (name for name in drawn if name.startswith(f"{kind}{number} of stage {stage}:"))
        x, y, width, height = numbers(drawn[name])
        assert x == pytest.approx(LEFT + WIDTH * event.begin / timeline.seconds, abs=0.1)
        assert width == pytest.approx(WIDTH * (event.end - event.begin) / timeline.seconds, abs=0.15)
        assert y == pytest.approx(TOP + LANE * (event.device + 0.12), abs=0.1)
        assert height == pytest.approx(0.76 * LANE, abs=0.15)
    assert "F0 of stage 1: 1 ms to 2 ms" in drawn
    assert len({(name[0], colour(svg, box)) for name, box in drawn.items()}) == 3
    printed = {name: number for name, group in groups(svg) if (number := group.findtext(f"{SVG}text"))}
    assert all(name[1:].startswith(f"{number} ") for name, number in printed.items())
    assert {name[0] for name in printed} == {"F", "B"}


def test_updates_without_duration_are_visible_in_every_panel() -> None:
    """An update takes no time in the units of Table 1. Each panel has its heading, its lanes and its description."""
    events = Event(0, ("B", 0, 0), 0.0, 2.0), Event(0, ("U", 0, 0), 2.0, 2.0), Event(0, ("F", 0, 1), 2.0, 4.0)
    panels = [
        Panel(title, Timeline(events, 1), (0, 4), [lane]) for title, lane in (("first", "one"), ("second", "two"))
    ]
    svg = to_svg(panels, key="two", title="both")
    assert [name[0] for name, _ in groups(svg)] == ["B", "F", "U"] * 2, "updates are above the next forward"
    assert all(numbers(group.find(f"{SVG}path"))[2] >= 0.5 for _, group in groups(svg))
    words = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert words.count("U update") == 1
    assert [word for word in words if word in ("first", "one", "second", "two")] == ["one", "first", "two", "second"]


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
    x, _, width, _ = numbers(boxes(svg)["F0 of stage 0: 0 ms to 5 ms"])
    assert (x, width) == (LEFT, WIDTH / 5)
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "a < b"
    assert (root.findtext(f"{SVG}desc") or "").endswith("idle: device 0 70%, device 1 100%.")
    assert not boxes(draw(Timeline((), 2), 0, 1))
    with pytest.raises(ValueError, match=r"must end after it begins, got 1\.0 to 1\.0 seconds"):
        draw(Timeline((), 1), 1.0, 1.0)
