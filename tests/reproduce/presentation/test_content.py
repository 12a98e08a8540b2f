"""Test the elements of tables: the typography of numbers, and downloads with full precision."""

import dataclasses

import pytest

from reproduce.presentation import content
from reproduce.presentation.content import MINUS, NARROW_SPACE, Column, Entry, Table
from reproduce.presentation.statistics import Estimate
from reproduce.presentation.tables import amount, number, table, words
from reproduce.published import Mark
from reproduce.report.layout import column_groups
from reproduce.text import some


def test_number_formatting() -> None:
    """Numbers, differences, intervals and relative errors are formatted with the expected digits and signs."""
    for value, digits, rendered in ((1.25, 1, "+1.2"), (-0.5, 1, f"{MINUS}0.5"), (-0.04, 1, "0.0"), (12.0, 0, "+12")):
        assert content.with_sign(value, digits) == rendered
    assert content.number(-1234567.891, 2).text == f"{MINUS}1,234,567.89"
    assert content.number(-0.001, 1).text == "0.0"
    settings = number("a setting", lambda value: value)
    texts = [settings.entries(value)[0].text for value in (4, 0.9, 1000)]
    assert texts == ["4", "0.9", "1,000"], "the decimals that a setting needs"
    assert content.estimate(Estimate(94.94, None, None, (1,)), 1).text == "94.9"
    assert content.estimate(Estimate(94.94, None, None, (1,)), 1).hint == "a single run: no interval"
    rendered = content.estimate(Estimate(-0.25, -0.75, 0.25, (3,)), 2, sign=True).text
    assert rendered == f"{MINUS}0.25{NARROW_SPACE}±{NARROW_SPACE}0.50"
    for values, text in (  # relative errors have two digits at any size, and no interval that reaches below 0
        ([1.568e-7, 1.632e-7], "1.6e-07; 1.6e-07 to 1.6e-07"),
        ([285.0, 446.0, 2285.0], "1,005; 285 to 2,285"),
        ([2.5e6], "2.5e+06"),
    ):
        entry = content.relative_error(values)
        assert (entry.text, entry.raw) == (text, pytest.approx(sum(values) / len(values)))
        assert entry.hint == ("one seed: no range" if len(values) == 1 else "")
    assert some(["a", "b"], limit=2) == "a; b"
    assert some(["a", "b", "c", "d"], limit=2) == "a; b; and 2 more"
    with pytest.raises(ValueError, match="table key: a row has 1 entries for 2 columns"):
        Table("key", "A table.", [Column("a"), Column("b")], [[Entry("x")]])


def test_rows_are_grouped_under_their_first_entry() -> None:
    columns = [Column("a", numeric=False), Column("x", group="g"), Column("y", group="g"), Column("z")]
    rows = [
        [Entry(a), content.number(x, 1), content.published_entry("2(J,j)", Mark.PAPER), content.missing("not run")]
        for a, x in [("p", 1 / 3), ("p", 2.0), ("q", 3.0)]
    ]
    grouped = Table("key", "A table.", columns, rows, grouped=True)
    assert [(heading, len(rows)) for heading, rows in grouped.bodies()] == [("p", 2), ("q", 1)]
    assert [column.name for column in grouped.shown_columns] == ["x", "y", "z"]
    assert column_groups(grouped.columns) == [("", 1), ("g", 2), ("", 1)]
    scattered = dataclasses.replace(grouped, rows=[rows[2], rows[0], rows[2], rows[1]])
    assert [(heading, len(rows)) for heading, rows in scattered.bodies()] == [("q", 2), ("p", 2)]


def test_column_of_headings_groups_the_rows() -> None:
    """Rows that share the entry of a first column of headings stand below it; other tables have one body."""
    fields = [words("odd", lambda k: bool(k % 2), heading=True), amount("bytes", lambda k: k, 0)]
    made = table(key="t", caption="A table", rows=[1, 2, 3], fields=fields)
    assert [(heading, len(rows)) for heading, rows in made.bodies()] == [("yes", 2), ("no", 1)]
    plain = table(key="t", caption="A table", rows=[1, 2, 3], fields=fields[1:])
    assert [(heading, len(rows)) for heading, rows in plain.bodies()] == [("", 3)]
