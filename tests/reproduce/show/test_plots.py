"""Drawings: the same bytes for the same data, ids that do not repeat, and words for who cannot see them."""

import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from petra_core import methods
from reproduce.show import plots


def drawing(key: str) -> str:
    with plots.style():
        figure = Figure(figsize=(3, 2))
        panel = figure.subplots()
        panel.plot([0, 1, 5], [0, 2, 1], "o-", clip_on=True)
        panel.set(xlim=(0, 2), title="a < b")
        return plots.to_svg(figure, key=key, title="Title & more", description="What is seen.")


def test_ids_and_classes_are_of_the_drawing_and_every_reference_has_its_target() -> None:
    """A style sheet holds for the whole page: two drawings must not name the same class."""
    classes = [set(re.findall(r"\.(\w+)\{", drawing(key))) for key in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]+)"', drawing(key))) for key in ("one", "two")]
    for first, second in (classes, ids):
        assert first
        assert not first & second
    assert set(re.findall(r'class="(\w+)"', drawing("one"))) == classes[0]
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawing("one"))) <= ids[0]


def test_the_same_data_gives_the_same_bytes_with_a_name_a_description_and_text_that_is_text() -> None:
    assert drawing("one") == drawing("one")
    assert "<metadata" not in drawing("one"), "without a date"
    root = ElementTree.fromstring(drawing("one"))
    title, description = root[0], root[1]
    assert (title.text, description.text) == ("Title & more", "What is seen.")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert "a < b" in [element.text for element in root.iter(f"{{{plots.SVG}}}text")]


def test_methods_are_told_apart_by_colour_and_mostly_by_dashes() -> None:
    assert set(plots.COLOURS) == set(plots.DASHES) == set(methods.ALL)
    assert len(set(plots.COLOURS.values())) == len(methods.ALL)
    assert len(set(plots.DASHES.values())) == len(methods.ALL) - 1  # backpropagation and PETRA are both solid
