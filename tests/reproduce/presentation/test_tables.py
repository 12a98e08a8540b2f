"""Test that a field contains the head and the entries of a column, so that these cannot disagree."""

from reproduce.presentation import content
from reproduce.presentation.compare import SeedSample
from reproduce.presentation.content import Role
from reproduce.presentation.tables import amount, difference, entry, judged_columns, mean, number, table, words
from reproduce.published import Mark

GAPS = {
    1: SeedSample({0: -2.0, 1: -2.1}) - SeedSample({0: 0.0, 1: 0.0}, machines={0: "CPU"}),
    4: SeedSample() - SeedSample(),
}


def test_every_kind_of_field_has_head_and_entries() -> None:
    """Every kind of field adds its heads and the entries below them."""
    made = table(
        key="t",
        caption="A table",
        rows=[1, 4, 9],
        fields=[
            words("odd", lambda k: "yes" if k % 2 else None),
            number("share", lambda k: k / 10 if k < 9 else 1000),
            mean("accuracy", lambda k: SeedSample({0: 60.0 + k}, {0: "done"}), group="runs"),
            amount("bytes", lambda k: 1e3 * k if k < 9 else None, 1, without="not held"),
            difference("less", lambda k: -k, 0),
            judged_columns("gap", lambda k: GAPS.get(k, ""), group="runs"),
            entry("published", lambda _: content.published_entry("95.3", Mark.PAPER)),
        ],
        notes=("first", ""),
    )
    heads = [column.name for column in made.columns]
    assert heads[5:7] == ["gap", "verdict"]
    assert made.columns[2].group == "runs"
    assert made.notes[0] == "first"
    assert made.notes[1:] == (), "no sides on different machines"
    rows = [dict(zip(heads, row, strict=True)) for row in made.rows]
    assert [row["odd"].text for row in rows] == ["yes", "", "yes"]
    assert [row["share"].text for row in rows] == ["0.1", "0.4", "1,000"], "the decimals that a number needs"
    assert [row["bytes"].text for row in rows] == ["1,000.0", "4,000.0", "not held"]
    assert rows[0]["less"].text == "\N{MINUS SIGN}1"
    assert [row["gap"].text for row in rows[1:]] == ["not comparable yet", ""]
    assert rows[0]["published"].mark is Mark.PAPER
    assert rows[2]["bytes"].role is Role.MISSING


def test_column_of_headings_groups_the_rows() -> None:
    """Rows that share the entry of a first column of headings stand below it; other tables have one body."""
    fields = [words("odd", lambda k: bool(k % 2), heading=True), amount("bytes", lambda k: k, 0)]
    made = table(key="t", caption="A table", rows=[1, 2, 3], fields=fields)
    assert [(heading, len(rows)) for heading, rows in made.bodies()] == [("yes", 2), ("no", 1)]
    plain = table(key="t", caption="A table", rows=[1, 2, 3], fields=fields[1:])
    assert [(heading, len(rows)) for heading, rows in plain.bodies()] == [("", 3)]
