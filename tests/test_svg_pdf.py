"""The PDF of a hand-written SVG shows what the SVG shows."""

from collections import Counter
from xml.etree import ElementTree

import pytest
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text

from petra_core import methods
from petra_core.drawing import to_svg
from petra_core.schedule import generate
from reproduce.tables import svg_pdf

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" width="96" height="48">'
DRAWING = to_svg(generate(methods.PETRA, 3, 5, 2), highlight=1, title="A title")


def artists(svg: str) -> list[object]:
    return list(svg_pdf._artists(ElementTree.fromstring(svg), svg_pdf.INHERITED))


def test_every_element_is_drawn_once_and_in_its_place() -> None:
    elements = Counter(element.tag.partition("}")[2] for element in ElementTree.fromstring(DRAWING).iter())
    drawn = artists(DRAWING)
    texts, boxes, paths = ([a for a in drawn if type(a) is kind] for kind in (Text, Rectangle, PathPatch))
    assert len(texts) == elements["text"] > 20
    assert len(boxes) == elements["rect"] > 20
    assert len(paths) == elements["path"] + elements["line"] > 5
    (heading,) = (text for text in texts if text.get_text() == "A title")
    assert heading.get_position() == (16, 24)
    assert heading.get_fontweight() == "bold"


def test_properties_come_from_the_groups_around_and_paths_keep_their_steps() -> None:
    group = '<g stroke="#112233" fill="none" stroke-width="4"><path d="M1 2 C3 4 5 6 7 8 L9 10 Z"/></g></svg>'
    (path,) = artists(HEAD + group)
    assert isinstance(path, PathPatch)
    assert path.get_edgecolor()[:3] == (0x11 / 255, 0x22 / 255, 0x33 / 255)
    assert path.get_linewidth() == 3  # 4 pixels are 3 points
    assert path.get_facecolor()[3] == 0
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, Path.CLOSEPOLY]
    assert list(path.get_path().codes) == codes
    assert path.get_path().vertices.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [1, 2]]


def test_the_page_of_the_pdf_has_the_size_of_the_drawing_and_the_same_bytes_each_time() -> None:
    file = svg_pdf.to_pdf(HEAD + '<rect x="1" y="1" width="3" height="3"/></svg>')
    assert b"/MediaBox [ 0 0 72 36 ]" in file
    assert svg_pdf.to_pdf(DRAWING) == svg_pdf.to_pdf(DRAWING)
    assert b"/Title (A title)" in svg_pdf.to_pdf(DRAWING)


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ('<circle r="2"/>', "<circle> cannot be drawn as PDF here; known are g, rect, line, path, text"),
        ('<path d="M1 2 Q3 4 5 6"/>', "the step Q of a path cannot be drawn"),
    ],
)
def test_what_it_does_not_know_is_refused_and_not_left_out(element: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        svg_pdf.to_pdf(f"{HEAD}{element}</svg>")
