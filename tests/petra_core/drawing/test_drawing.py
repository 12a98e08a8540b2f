"""The drawing holds exactly the schedule that it is given."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.drawing.schedules import to_svg
from petra_core.methods import Method
from petra_core.schedule import Kind, Schedule, generate

SVG = "{http://www.w3.org/2000/svg}"


def turns_in(svg: str) -> dict[tuple[int, int], str]:
    """The drawing read back: actions by (tick, stage), from the tooltips."""
    letters = {}
    for title in ElementTree.fromstring(svg).iterfind(f"{SVG}g/{SVG}title"):
        match = re.fullmatch(r"tick (\d+), stage (\d+): (.+)", title.text or "")
        assert match is not None
        letters[int(match[1]), int(match[2])] = match[3]
    return letters


def turns_of(schedule: Schedule) -> dict[tuple[int, int], str]:
    return {
        (t, j): " ".join(map(str, turn))
        for t, tick in enumerate(schedule.ticks, schedule.first_tick)
        for j, turn in enumerate(tick)
        if turn
    }


def boxes(svg: str) -> list[tuple[int, int, ElementTree.Element]]:
    """Every box with its tick and stage."""
    drawn = []
    for group in ElementTree.fromstring(svg).iterfind(f"{SVG}g"):
        label = group.findtext(f"{SVG}title")
        if label is not None:
            tick, stage = map(int, re.findall(r"\d+", label)[:2])
            drawn += [(tick, stage, rect) for rect in group.iterfind(f"{SVG}rect")]
    return drawn


@pytest.mark.parametrize(
    ("method", "stages", "accumulation"),
    [(methods.PETRA, 1, 1), (methods.PETRA, 4, 3), (methods.BACKPROPAGATION, 3, 1), (methods.PAREPROP, 4, 1)],
    ids=str,
)
def test_every_action_is_drawn_once_in_its_lane_and_column(method: Method, stages: int, accumulation: int) -> None:
    schedule = generate(method, stages, 7, accumulation)
    svg = to_svg(schedule)
    assert turns_in(svg) == turns_of(schedule)
    placed = boxes(svg)
    assert len(placed) == sum(len(turn) for tick in schedule.ticks for turn in tick)
    # A lane is one height, lower for each stage; columns follow each other without overlap.
    heights = {(stage, rect.get("y")) for _, stage, rect in placed}
    assert len(heights) == stages
    assert [stage for stage, _ in sorted(heights, key=lambda item: float(item[1] or "nan"))] == list(range(stages))
    for stage in range(stages):
        lane = sorted(
            (float(rect.get("x", "nan")), float(rect.get("width", "nan")), tick)
            for tick, at, rect in placed
            if at == stage
        )
        for (x, width, tick), (next_x, _, next_tick) in pairwise(lane):
            assert x + width <= next_x
            assert tick <= next_tick


def test_kinds_have_a_colour_each_and_a_place_in_the_legend() -> None:
    root = ElementTree.fromstring(to_svg(generate(methods.PETRA, 3, 9, 2)))
    legend = [text.text for text in root.iterfind(f"{SVG}text") if re.match(r"[FRBU] ", text.text or "")]
    assert legend == ["F forward", "R reconstruct", "B backward", "U update"]
    assert len({rect.get("fill") for rect in root.iterfind(f"{SVG}g/{SVG}rect")}) == len(Kind)


@pytest.mark.parametrize(
    ("method", "stages"),
    [(methods.PETRA, 1), (methods.PETRA, 4), (methods.BACKPROPAGATION, 3), (methods.PAREPROP, 3)],
    ids=str,
)
def test_the_way_of_one_micro_batch(method: Method, stages: int) -> None:
    """J-1 activations down, J-1 gradients up; the boxes of that micro-batch are outlined, and no other."""
    schedule = generate(method, stages, 9, 1)
    svg = to_svg(schedule, highlight=2)
    arrows = re.findall(r'<path d="M[\d.]+ ([\d.]+) C.*? ([\d.]+)"', svg)
    down = [start < end for start, end in ((float(a), float(b)) for a, b in arrows)]
    assert down == [True] * (stages - 1) + [False] * (stages - 1)
    outlined = [rect for _, _, rect in boxes(svg) if rect.get("stroke-width") == "2"]
    tips = re.findall(r'<path d="M[\d.]+ [\d.]+ C.*? ([\d.]+) [\d.]+"', svg)
    middles = [float(rect.get("x", 0)) + float(rect.get("width", 0)) / 2 for rect in outlined]
    assert set(map(float, tips)) <= set(middles), "each arrow ends at a box"
    way = [a for j in range(stages) for a in schedule.stage(j) if a.kind is not Kind.UPDATE and a.number == 2]
    assert len(outlined) == len(way)
    assert "<path" not in to_svg(schedule)
    with pytest.raises(ValueError, match="micro-batch 9 cannot be highlighted: there are the micro-batches 0 to 8"):
        to_svg(schedule, highlight=9)


def test_accessible_and_self_contained() -> None:
    svg = to_svg(generate(methods.PETRA, 3, 9, 2), highlight=1, title="a < b & c")
    root = ElementTree.fromstring(svg)
    assert (root.get("role"), root.get("aria-label"), root.findtext(f"{SVG}title")) == ("img", *["a < b & c"] * 2)
    assert "Schedule of PETRA, 3 stages, k = 2, ticks 0 to 12" in (root.findtext(f"{SVG}desc") or "")
    # Many drawings may stand in one page: no name of one can meet that of another, nothing is fetched.
    assert not any({"id", "class", "style", "href"} & element.attrib.keys() for element in root.iter())
    assert "url(" not in svg


def test_everything_lies_within_the_canvas_wide_enough_for_its_numbers() -> None:
    svg = to_svg(generate(methods.PETRA, 10, 1030, 2).window(1000, 1025), highlight=1005)
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert root.get("viewBox") == f"0 0 {width:g} {height:g}"
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
    ticks = [text.text for text in root.iterfind(f"{SVG}text") if (text.text or "").isdigit()]
    assert ticks == [str(t) for t in range(1000, 1025)]
    forward, reconstruct, backward = (float(rect.get("width", "nan")) for _, _, rect in boxes(svg)[:3])
    assert forward == reconstruct == backward / 2  # the units of Table 1
    assert forward > 6.5 * 4  # a digit of the 11 pixel font is about 6.5 wide
    assert turns_in(to_svg(generate(methods.PETRA, 3, 0, 1))) == {}
