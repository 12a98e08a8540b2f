"""Test the layout of a section on the page."""

from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from reproduce.presentation.content import Column, Entry, Figure, Role, Section, Table, missing, number, published_entry
from reproduce.published import Mark
from reproduce.report.layout import k_of_head, name_svg, picture, split

BEGUN, WAITING = [Entry("a"), number(1.0, 1)], [Entry("b"), missing("not run")]
STATED = [Entry("c"), missing("not run"), published_entry("94.9", Mark.PAPER)]


def some_table(*rows: Sequence[Entry]) -> Table:
    columns = [Column("way"), *[Column("accuracy, %")] * (len(rows[0]) - 1)]
    return Table("t", "Accuracy of the ways.", columns, rows, notes=["One note."], scale="small")


def test_k_of_head_reads_k_from_the_heading() -> None:
    assert [k_of_head(head) for head in ("k = 4", "k = 16", "", "k", "RevNet-18, k = 4")] == ["4", "16", "", "", ""]


def test_rows_not_run_are_separated_if_they_dominate() -> None:
    """If most rows were not run, they are moved to a separate table."""
    rendered, waiting = split(some_table(WAITING, BEGUN, WAITING))
    assert rendered.rows == [BEGUN]
    assert rendered.notes == ["One note."]
    assert waiting is not None
    assert (waiting.key, waiting.rows, waiting.notes) == ("not-run-t", [WAITING, WAITING], ())
    assert (waiting.caption, waiting.scale) == (rendered.caption, "small")


@pytest.mark.parametrize(
    "rows",
    [
        (BEGUN, WAITING),  # not the majority of rows
        (WAITING, WAITING),  # no other rows
        (STATED, STATED, [*BEGUN, missing("")]),  # a published value is worth showing
        ([Entry("d", role=Role.MISSING)], [Entry("d")]),
    ],
)
def test_other_tables_are_not_split(rows: tuple[Sequence[Entry], ...]) -> None:
    """A table without a majority of such rows, or without other rows, stays whole."""
    table = some_table(*rows)
    assert split(table) == (table, None)


def test_chosen_name_cannot_escape_an_attribute() -> None:
    """Escape the key of a figure, which contains the name of a benchmark that a pull request can choose."""
    key = """benchmark-x" onload="document.title='PWNED'"""
    svg = '<svg viewBox="0 0 10 20"></svg>'
    figure = Figure(key, "title", svg, "caption")
    (root,) = [ElementTree.fromstring(name_svg(figure))]
    assert set(root.attrib) == {"id", "viewBox"}
    small = picture(Section(key="s", title="t", blocks=[figure], findings=[]))
    assert small is not None
    assert f"svg-{small.key}" == root.attrib["id"], "by which the small picture finds it"
