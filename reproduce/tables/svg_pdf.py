"""SVG drawings that no plotting library made, as PDF.

`petra_core.drawing` writes its SVG itself, so there is nothing that could be asked to save a PDF of the same picture;
a second drawing routine would be free to show something else. Here the elements of that SVG are read and drawn again,
one patch or text for each. It knows the few that occur (groups, rectangles, lines, texts, paths of M, L, C and Z) and
refuses any other, rather than leave it out.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text

from reproduce.tables import plots

PIXELS_PER_INCH, POINTS_PER_PIXEL = 96, 0.75
NARROWER = 0.88  # DejaVu Sans, which is embedded, is wider than the fonts of the systems that the SVG asks for
BOLD = 600
SILENT = ("title", "desc")
STEPS = {"M": (Path.MOVETO,), "L": (Path.LINETO,), "C": (Path.CURVE4,) * 3, "Z": (Path.CLOSEPOLY,)}
ALIGNMENTS: dict[str, Literal["left", "center", "right"]] = {"start": "left", "middle": "center", "end": "right"}
#: Properties that an element has from those around it, with what holds at the top.
INHERITED = {"fill": "#000000", "stroke": "none", "stroke-width": "1", "font-size": "16", "font-weight": "400"}


def to_pdf(svg: str) -> bytes:
    """The drawing as PDF, at the size that it has in the page.

    Raises:
        ValueError: there is an element in it, or a step of a path, that is not known here.

    """
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    with plots.style():
        drawing = Drawing(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH))
        panel = drawing.add_axes((0, 0, 1, 1))
        panel.set(xlim=(0, width), ylim=(height, 0))
        panel.axis("off")
        for order, artist in enumerate(_artists(root, INHERITED)):
            artist.set_zorder(order)
            panel.add_artist(artist)
        return plots.to_pdf(drawing, root.findtext(f"{{{plots.SVG}}}title", ""))


def _artists(parent: ElementTree.Element, inherited: Mapping[str, str]) -> Iterator[Artist]:
    """In the order in which they lie over each other."""
    style = {name: parent.get(name, value) for name, value in inherited.items()}
    for element in parent:
        tag = element.tag.removeprefix(f"{{{plots.SVG}}}")
        if tag == "g":
            yield from _artists(element, style)
        elif tag not in SILENT:
            if tag not in _ARTISTS:
                raise ValueError(f"<{tag}> cannot be drawn as PDF here; known are g, {', '.join(_ARTISTS)}")
            yield _ARTISTS[tag](element, {name: element.get(name, value) for name, value in style.items()})


def _rect(element: ElementTree.Element, style: Mapping[str, str]) -> Artist:
    x, y, width, height = _numbers(element, "x", "y", "width", "height")
    return Rectangle((x, y), width, height, **_paint(style))


def _line(element: ElementTree.Element, style: Mapping[str, str]) -> Artist:
    x1, y1, x2, y2 = _numbers(element, "x1", "y1", "x2", "y2")
    return PathPatch(Path([(x1, y1), (x2, y2)]), **_paint(style))


def _path(element: ElementTree.Element, style: Mapping[str, str]) -> Artist:
    points: list[tuple[float, float]] = []
    codes: list[np.uint8] = []
    for step, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", element.attrib["d"]):
        if step not in STEPS:
            raise ValueError(f"the step {step} of a path cannot be drawn as PDF here; known are {', '.join(STEPS)}")
        numbers = [float(number) for number in text.split()]
        points += zip(numbers[::2], numbers[1::2], strict=True) if numbers else [points[0]]
        codes += STEPS[step]
    return PathPatch(Path(points, codes), alpha=float(element.get("stroke-opacity", 1)), **_paint(style))


def _text(element: ElementTree.Element, style: Mapping[str, str]) -> Artist:
    x, y = _numbers(element, "x", "y")
    return Text(
        x,
        y,
        element.text or "",
        color=style["fill"],
        fontsize=float(style["font-size"]) * POINTS_PER_PIXEL * NARROWER,
        fontweight="bold" if int(style["font-weight"]) >= BOLD else "normal",
        horizontalalignment=ALIGNMENTS[element.get("text-anchor", "start")],
        verticalalignment="baseline",
        parse_math=False,
    )


_ARTISTS: dict[str, Callable[[ElementTree.Element, Mapping[str, str]], Artist]] = {
    "rect": _rect,
    "line": _line,
    "path": _path,
    "text": _text,
}


def _numbers(element: ElementTree.Element, *names: str) -> tuple[float, ...]:
    return tuple(float(element.attrib[name]) for name in names)


def _paint(style: Mapping[str, str]) -> dict[str, Any]:
    width = float(style["stroke-width"]) * POINTS_PER_PIXEL
    return {"facecolor": style["fill"], "edgecolor": style["stroke"], "linewidth": width}
