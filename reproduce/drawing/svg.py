"""Build SVG drawings from a few elements.

A drawing is self-contained and can be embedded in a page any number of times: it has no ids, style sheets or scripts,
and a white background for dark pages. Screen readers read the title and the description.
"""

from collections.abc import Mapping
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
    _add(parent, "rect", style, x=x, y=y, width=width, height=height)


def line(parent: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, **style: str) -> None:
    """Add a straight line."""
    _add(parent, "line", style, x1=x1, y1=y1, x2=x2, y2=y2)


def text(parent: ElementTree.Element, x: float, y: float, content: str, **style: str) -> None:
    """Add one line of text, anchored at (x, y) on its baseline."""
    _add(parent, "text", style, x=x, y=y).text = content


def _add(parent: ElementTree.Element, tag: str, style: Mapping[str, str], **place: float) -> ElementTree.Element:
    attributes = {name: f"{value:g}" for name, value in place.items()}
    return ElementTree.SubElement(parent, tag, attributes | {name.replace("_", "-"): style[name] for name in style})
