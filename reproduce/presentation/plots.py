"""Draw in one style, as SVG that is the same for the same data.

matplotlib's SVG cannot be put into a page directly: it contains the date, ids that repeat from figure to figure, and no
alternative text. `to_svg` corrects this. Methods keep their colour and dashes in all figures. Most colours are from the
palette of Okabe and Ito, which can be told apart with any colour vision. The dashes can be told apart in grey print.
"""

import io
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from petra_core import methods
from petra_core.methods import Method

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
INK, QUIET, RULE = "#1c1c1c", "#5f5f5f", "#d9d9d6"

#: Colour and dashes of each method.
STYLES: dict[Method, tuple[str, tuple[float, ...]]] = {
    methods.BACKPROPAGATION: ("#4a4a4a", ()),
    methods.REVERSIBLE_BACKPROPAGATION: ("#cc79a7", (4, 1.5)),
    methods.DELAYED_GRADIENTS: ("#e69f00", (1, 1)),
    methods.DSP: ("#56b4e9", (5, 1, 1, 1)),
    methods.APPROXIMATE_INPUTS: ("#009e73", (2, 1)),
    methods.PETRA: ("#d55e00", ()),
    methods.PAREPROP: ("#0072b2", (3, 1, 1, 1, 1, 1)),
    methods.PIPEDREAM_2BW: ("#8c6bb1", (6, 2)),
}
COLOURS = {method: colour for method, (colour, _) in STYLES.items()}

#: Style of the drawings of the suite, for `matplotlib.rc_context`.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: screen readers and search can read it, and it is small
    "svg.hashsalt": "petra-suite",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib, so that the layout is the same everywhere
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titley": 1.0,  # otherwise every draw moves titles out of the way of ticks, which are never at the top
    "axes.facecolor": "none",  # the page has a background
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "white",
    "patch.force_edgecolor": True,
}


#: Colours that a dark page replaces. A drawing outside of a page keeps them.
THEMED = {
    INK: "--ink",
    QUIET: "--quiet",
    RULE: "--rule",
    "#ffffff": "--page",
    "#4a4a4a": "--exact",
    "#0072b2": "--deep",
}


def to_svg(drawing: Drawing, *, key: str, title: str, description: str) -> str:
    """Return a drawing as an `<svg>` element for a page, in its size in inches, with `key` before every id."""
    stream = io.StringIO()
    # Not `savefig`, which draws everything twice, the first time only for the layout.
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(drawing).print_svg(stream, metadata=without)  # type: ignore[no-untyped-call]  # has no types
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    short = f"f{zlib.crc32(key.encode()):x}"  # shorter than the key: it occurs hundreds of times
    root = ElementTree.fromstring(_prefix_ids(stream.getvalue(), short))
    _drop_unseen(root)
    _set_tooltips(root)
    root.set("stroke-linejoin", "round")  # replaces the removed style sheet, which applied to the whole page
    names = {"title": f"{key}-title", "desc": f"{key}-desc"}
    for position, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": names[tag]})
        element.text = words
        root.insert(position, element)
    root.set("role", "img")
    root.set("aria-labelledby", " ".join(names.values()))
    root.set("font-family", "DejaVu Sans, sans-serif")
    _share_styles(root, short)
    return ElementTree.tostring(root, encoding="unicode")


GAP = 5.0  # points around panels


def lay_out(drawing: Drawing, grid: npt.NDArray[Any], widths: Sequence[float]) -> None:
    """Give panels the space that their ticks, labels and titles leave, above the legend of the drawing.

    matplotlib's layout engines measure every panel twice, which takes as long as drawing it.

    Args:
        drawing: The drawing.
        grid: Its panels, in lines of equal lengths.
        widths: Widths of the columns, in any unit.

    """
    renderer = FigureCanvasAgg(drawing).get_renderer()  # type: ignore[no-untyped-call]  # has no types
    width, height = (drawing.dpi * inches for inches in drawing.get_size_inches())
    below = sum(legend.get_window_extent(renderer).height for legend in drawing.legends)
    lines, columns = grid.shape
    drawing.subplots_adjust(0.08, below / height + 0.08, 0.99, 0.93)  # nearly right, for the number of ticks
    around = np.zeros((4, lines, columns))  # space left, right, below and above
    labels: dict[tuple[int, ...], tuple[float, float]] = {}  # distances of the labels from the axes
    for place, axes in np.ndenumerate(grid):
        if axes.axison:
            whole, inside = axes.get_tightbbox(renderer, for_layout_only=True), axes.get_window_extent(renderer)
            sides = inside.x0 - whole.x0, whole.x1 - inside.x1, inside.y0 - whole.y0, whole.y1 - inside.y1
            around[:, *place] = np.maximum(sides, 0)
            below_axis = inside.y0 - axes.xaxis.label.get_position()[1]
            beside_axis = inside.x0 - axes.yaxis.label.get_position()[0]
            labels[place] = below_axis, beside_axis
    left, right = around[:2].max(axis=1) + GAP
    under, over = around[2:].max(axis=2) + GAP
    each = (width - left.sum() - right.sum()) / sum(widths)
    tall = (height - below - under.sum() - over.sum()) / lines
    for (line, column), axes in np.ndenumerate(grid):
        x = left[: column + 1].sum() + right[:column].sum() + each * sum(widths[:column])
        y = height - over[: line + 1].sum() - under[:line].sum() - tall * (line + 1)
        axes.set_position((x / width, y / height, each * widths[column] / width, tall / height))
        if distances := labels.get((line, column)):
            below_axis, beside_axis = distances  # kept, since placing labels again would place all ticks again
            axes.xaxis.set_label_coords(0.5, -below_axis / tall)
            axes.yaxis.set_label_coords(-beside_axis / (each * widths[column]), 0.5)


def box_of(drawing: Drawing, axes: Axes) -> tuple[float, ...]:
    """Return x, y, width and height of a drawn panel in the units of the SVG."""
    width, height = (72 * inches for inches in drawing.get_size_inches())
    place = axes.get_position()
    box = place.x0 * width, (1 - place.y1) * height, place.width * width, place.height * height
    return tuple(round(float(value), 1) for value in box)


def _drop_unseen(root: ElementTree.Element) -> None:
    """Shorten a drawing: remove metadata, white space, invisible shapes, and groups without attributes."""
    children = []
    for child in root:
        _drop_unseen(child)
        if not (child.tail or "").strip():
            child.tail = None
        if not (child.text or "").strip():
            child.text = None
        for name, value in list(child.attrib.items()):
            child.set(name, _light(name, value))
        if child.get("transform", "").startswith("rotate(-0 "):
            del child.attrib["transform"]
        if child.tag == f"{{{SVG}}}g" and not child.attrib:
            children += list(child)
        elif child.tag not in UNSEEN and child.get("style") != "fill:none" and (len(child) or child.tag != DEFINITIONS):
            children.append(child)
    root[:] = children


def _set_tooltips(root: ElementTree.Element) -> None:
    """Show the `url` of artists as tooltips. Successive artists with the same one become one group."""
    group = tooltip = ElementTree.Element(f"{{{SVG}}}title")
    for link in root.findall(f"{{{SVG}}}a"):
        words = link.get(f"{{{XLINK}}}href")
        if words == tooltip.text:
            group.extend(link)
            root.remove(link)
            continue
        group, tooltip = link, ElementTree.Element(f"{{{SVG}}}title")
        tooltip.text = words
        group.tag, group.attrib = f"{{{SVG}}}g", {}
        group.insert(0, tooltip)


UNSEEN = (f"{{{SVG}}}metadata", f"{{{SVG}}}style")
DEFINITIONS = f"{{{SVG}}}defs"


def _share_styles(root: ElementTree.Element, prefix: str) -> None:
    """Define styles that many elements share once, as classes. This shrinks a figure of many marks to a third."""
    styles = Counter(element.get("style", "") for element in root.iter())
    often = [style for style, times in styles.items() if style and times > FEW]
    names = {style: f"{prefix}{number}" for number, style in enumerate(often)}
    for element in root.iter():
        if (style := element.get("style", "")) in names:
            del element.attrib["style"]
            element.set("class", names[style])
    sheet = ElementTree.Element(f"{{{SVG}}}style")
    sheet.text = "".join(f".{name}{{{style}}}" for style, name in names.items())
    root.insert(2, sheet)  # after title and description


FEW = 2  # an element's style becomes a class if more elements than this share it
FONT = ";font-family:'DejaVu Sans', sans-serif"  # of every text, set once at the root


def _light(name: str, value: str) -> str:
    """Shorten an attribute, and use the page's variables for the colours that the page replaces.

    A tenth of a point is not visible; matplotlib writes millionths.
    """
    if name == "style":
        for colour, variable in THEMED.items():
            value = value.replace(colour, f"var({variable}, {colour})")
        return value.replace("; ", ";").replace(": ", ":").replace(FONT, "")
    if name in NUMBERS:
        value = FRACTION.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
        if name == "d":
            value = re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(value.split()))
    return value


NUMBERS = ("d", "transform", "x", "y", "width", "height", "viewBox")
FRACTION = re.compile(r"-?\d+\.\d+")


def _prefix_ids(svg: str, key: str) -> str:
    """Make ids short and unique in the page, and drop those without references."""
    used = {name: f"{key}-{place}" for place, name in enumerate(dict.fromkeys(REFERENCE.findall(svg)))}
    svg = REFERENCE.sub(lambda match: match[0].replace(match[1], used[match[1]]), svg)
    return re.sub(r' id="([^"]+)"', lambda match: f' id="{used[match[1]]}"' if match[1] in used else "", svg)


REFERENCE = re.compile(r'(?:url\(|href=")#([^")]+)')
