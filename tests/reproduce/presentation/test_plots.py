"""Test drawings: unique classes, looks of methods, the layout of panels, and short files."""

import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from petra_core import methods
from reproduce.presentation import plots


def drawing(key: str) -> str:
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(3, 2))
        panel = figure.subplots()
        panel.plot([0, 1, 5], [0, 2, 1], "o-", clip_on=True)
        panel.set(xlim=(0, 2), title="a < b")
        return plots.to_svg(figure, key=key, title="Title & more", description="What is seen.")


def test_classes_are_unique_per_drawing() -> None:
    """A style sheet applies to the whole page, so two drawings must not use the same class."""
    first, second = (set(re.findall(r"\.(\w+)\{", drawing(key))) for key in ("one", "two"))
    assert first
    assert not first & second
    assert set(re.findall(r'class="(\w+)"', drawing("one"))) == first


def test_methods_differ_by_colour_and_mostly_by_dashes() -> None:
    """Every method has a separate colour, and all but two have separate dashes."""
    assert set(plots.STYLES) == set(methods.ALL)
    assert len(set(plots.COLOURS.values())) == len(methods.ALL)
    dashes = {dashes for _, dashes in plots.STYLES.values()}
    assert len(dashes) == len(methods.ALL) - 1  # backpropagation and PETRA are both solid


def test_panels_do_not_overlap_or_leave_the_drawing() -> None:
    """With four panels with long names, nothing leaves the drawing or overlaps a neighbour or the legend."""
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(6, 4), dpi=72)
        grid = figure.subplots(2, 2)
        for number, panel in enumerate(grid.flat):
            panel.barh(["a name of many words", "another"], [1, 1000 * (number + 1)], label="bars")
            panel.set(title=f"panel {number}\nof four", xlabel="amount")
        grid[1, 1].set_axis_off()
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="lower center")
        plots.lay_out(figure, grid, (3, 2))
        plots.to_svg(figure, key="grid", title="Grid", description="Four panels.")
    panels = [panel.get_tightbbox() for panel in grid.flat if panel.axison]
    boxes = [*panels, figure.legends[0].get_window_extent()]
    for place, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[:place])
    widths = [panel.get_window_extent().width for panel in grid[0]]
    assert widths[0] == pytest.approx(1.5 * widths[1])


def test_svg_omits_empty_elements_and_excess_digits() -> None:
    """A drawing has no empty groups or paths, and coordinates have at most one decimal."""
    root = ElementTree.fromstring(drawing("one"))
    for element in root.iter():
        assert element.attrib or element.tag not in (f"{{{plots.SVG}}}g", f"{{{plots.SVG}}}path")
        assert not re.search(r"\.\d\d", element.get("d", "") + element.get("x", "")), "a tenth of a point is enough"
    lines = [element.get("d", "") for element in root.iter(f"{{{plots.SVG}}}path")]
    assert any(line.count("L") == 2 for line in lines), "the curve is there"
