"""Wide tables are cut between their groups of columns, and nothing of them is lost."""

from reproduce.report import paper
from reproduce.show.content import Column, Table, number, text


def wide(groups: int, width: int, *, grouped: bool = False) -> Table:
    columns = [Column("network", numeric=False), Column("method", numeric=False)]
    columns += [Column(f"c{n}", group=f"k = {g}") for g in range(groups) for n in range(width)]
    row = [text("RevNet-18"), text("PETRA"), *(number(n, 0) for n in range(groups * width))]
    return Table("key", "A table.", columns, [row, row], notes=("A note.",), grouped=grouped)


def test_what_fits_is_not_cut() -> None:
    assert paper.parts(wide(2, 6)) == []
    assert paper.parts(wide(0, 0)) == []
    assert paper.parts(wide(1, 20)) == []  # there is no place to cut it


def test_parts_have_the_leading_columns_whole_groups_and_together_everything() -> None:
    table = wide(6, 6)
    parts = paper.parts(table)
    assert [[name for name, _ in paper.column_groups(part.columns[2:])] for part in parts] == [
        ["k = 0", "k = 1"],
        ["k = 2", "k = 3"],
        ["k = 4", "k = 5"],
    ]
    assert [part.caption for part in parts] == [f"A table. (part {n} of 3)" for n in (1, 2, 3)]
    for part in parts:
        assert part.columns[:2] == table.columns[:2]
        assert [row[:2] for row in part.rows] == [row[:2] for row in table.rows]
        assert part.notes == ()
    values = [entry for part in parts for entry in part.rows[0][2:]]
    assert values == table.rows[0][2:]


def test_headings_stay_headings() -> None:
    parts = paper.parts(wide(3, 6, grouped=True))
    assert [part.bodies()[0][0] for part in parts] == ["RevNet-18", "RevNet-18"]
    assert [len(part.shown_columns) for part in parts] == [1 + 12, 1 + 6]
