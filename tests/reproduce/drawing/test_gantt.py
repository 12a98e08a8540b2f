"""Test that the picture contains exactly the given events, at their places and times."""

from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from reproduce.drawing.gantt import to_svg
from reproduce.drawing.timeline import Event, Timeline
from reproduce.modelling.simulation import make_schedule, simulate

SVG = "{http://www.w3.org/2000/svg}"
UNIT = Cost(forward=1e-3, backward=2e-3, update=0.5e-3)


def boxes(svg: str) -> dict[str, ElementTree.Element]:
    """Return the bars by tooltip."""
    return {
        group.findtext(f"{SVG}title") or "": group.find(f"{SVG}rect")
        for group in ElementTree.fromstring(svg).iterfind(f"{SVG}g")
    }


def numbers(box: ElementTree.Element) -> tuple[float, ...]:
    return tuple(float(box.get(name, "nan")) for name in ("x", "y", "width", "height"))


def test_events_are_drawn_in_lane_with_duration() -> None:
    """Every event is drawn in the lane of its device, with its start and duration to scale."""
    timeline = simulate(make_schedule(methods.PETRA, (1, 1, 1), 6), [UNIT] * 3)
    drawn = boxes(to_svg(timeline, title="three devices"))
    assert len(drawn) == len(timeline.events)
    pixels_a_second = 900 / timeline.seconds
    for event, box in zip(timeline.events, drawn.values(), strict=True):
        x, y, width, height = numbers(box)
        assert x == pytest.approx(90 + pixels_a_second * event.begin, abs=0.1)
        assert width == pytest.approx(pixels_a_second * (event.end - event.begin), abs=0.1)
        assert y == 62 + 28 * event.device
        assert height == 22
    assert "F0 of stage 1: 1 ms to 2 ms" in drawn
    colours = {name.split()[0][0]: box.get("fill") for name, box in drawn.items()}
    assert len(set(colours.values())) == len(colours) == 3


def test_waits_are_drawn_but_not_counted_as_work() -> None:
    """Waits are drawn with a label, and do not count as busy time."""
    timeline = Timeline((Event(0, ("wait", 1, 3), 0.0, 1.0), Event(0, ("F", 1, 3), 1.0, 2.0)), 1)
    svg = to_svg(timeline, title="a trace", labels={0: "rank 0, stages 0..4"})
    assert list(boxes(svg)) == ["wait, stage 1: 0 s to 1 s", "F3 of stage 1: 1 s to 2 s"]
    root = ElementTree.fromstring(svg)
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "rank 0, stages 0..4" in words
    assert "50%" in words
    assert words[-2:] == ["F forward", "wait"]


def test_span_is_clipped_and_empty_timeline_draws_nothing() -> None:
    """Draw 4 to 9 ms. Idle time is that of the drawn part."""
    timeline = Timeline((Event(0, ("F", 0, 0), 0.0, 5e-3), Event(0, ("B", 0, 0), 8e-3, 8.5e-3)), 2)
    svg = to_svg(timeline, title="a < b", span=(4e-3, 9e-3))
    x, _, width, _ = numbers(boxes(svg)["F0 of stage 0: 0 ms to 5 ms"])
    assert (x, width) == (90, 180)
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == root.findtext(f"{SVG}title") == "a < b"
    assert (root.findtext(f"{SVG}desc") or "").endswith("idle: device 0 70%, device 1 100%.")
    assert not boxes(to_svg(Timeline((), 2), title="nothing was done"))
    with pytest.raises(ValueError, match=r"must end after it begins, got 1\.0 to 1\.0 seconds"):
        to_svg(Timeline((), 1), title="", span=(1.0, 1.0))
