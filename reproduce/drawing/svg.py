"""Build SVG drawings from a few elements.

A drawing is self-contained and can be embedded in a page any number of times: it has no ids, style sheets or scripts,
and a white background for dark pages. Screen readers read the title and the description.
"""

from collections.abc import Iterable
from xml.etree import ElementTree

INK, QUIET, LANE, RULE = "#1c1c1c", "#5f5f5f", "#f4f4f2", "#d9d9d6"


def canvas(width: float, height: float, title: str, description: str) -> ElementTree.Element:
    """Return a white `<svg>` with an accessible name and description. Width and height are in pixels."""
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:g} {height:g}",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "role": "img",
            "aria-label": title,
            "font-family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif",
            "font-size": "11",
            "fill": INK,
        },
    )
    ElementTree.SubElement(root, "title").text = title
    ElementTree.SubElement(root, "desc").text = description
    rect(root, 0, 0, width, height, fill="#ffffff")
    return root


def rect(parent: ElementTree.Element, x: float, y: float, width: float, height: float, **style: str) -> None:
    """Add a rectangle. Underscores in the names of `style` become hyphens."""
    place = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}
    ElementTree.SubElement(parent, "rect", place | _attributes(style.items()))


def line(parent: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, **style: str) -> None:
    """Add a straight line."""
    place = {"x1": f"{x1:g}", "y1": f"{y1:g}", "x2": f"{x2:g}", "y2": f"{y2:g}"}
    ElementTree.SubElement(parent, "line", place | _attributes(style.items()))


def text(parent: ElementTree.Element, x: float, y: float, content: str, **style: str) -> None:
    """Add one line of text, anchored at (x, y) on its baseline."""
    place = {"x": f"{x:g}", "y": f"{y:g}"}
    ElementTree.SubElement(parent, "text", place | _attributes(style.items())).text = content


def _attributes(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in pairs}
