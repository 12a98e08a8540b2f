"""The published values: complete, marked, and never more precise than their source."""

import pytest

from reproduce import published
from reproduce.published import Mark


def test_published_tables_are_complete_with_marks() -> None:
    """Every published table has all its rows, each with a mark."""
    counts = {"exhibits": 9, "table1_complexity": 5, "table2_accuracy": 30, "table3_memory": 4, "table5_speed": 2}
    for name, rows in {**counts, "table6_fragments": 4}.items():
        read = published.read(name)
        assert len(read) == rows
        assert all(isinstance(row.mark, Mark) and "source" not in row.fields for row in read)
    assert not [mark for mark in Mark if "the paper" in mark.meaning], "marks are of values of other papers, too"
    assert {row.mark for row in published.read("table2_accuracy")} == {Mark.PAPER}
    assert {row.mark for row in published.read("table3_memory")} == {Mark.PAPER}
    assert {row.mark for row in published.read("table5_speed")} == {Mark.SECOND_HAND}
    unknown = {row["key"] for row in published.read("exhibits") if row.mark is Mark.UNKNOWN}
    assert unknown == {"table4", "table6", "figure4", "figure5", "figure6"}


def test_table2_has_every_combination_once() -> None:
    """Table 2 has every method, network and data set once."""
    rows = published.read("table2_accuracy")
    cells = [(row["method"], row["model"], row["dataset"]) for row in rows]
    assert len(set(cells)) == len(cells)
    for depth in (18, 34, 50):
        for dataset in ("cifar10", "imagenet32", "imagenet"):
            assert ("backpropagation", f"resnet{depth}", dataset) in cells
            assert ("backpropagation", f"revnet{depth}", dataset) in cells
            assert ("petra", f"revnet{depth}", dataset) in cells
    assert all(50 < row.number("top1_percent") < 100 for row in rows)


def test_invalid_number_or_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in place of a number, and an unknown mark, raise a ValueError."""
    row = published.read("table1_complexity")[0]
    assert row["activation_storage"] == "FG"
    with pytest.raises(ValueError, match="FG"):
        row.number("activation_storage")
    monkeypatch.setattr(published.csv, "DictReader", lambda _: [{"source": "hearsay"}])
    with pytest.raises(ValueError, match="hearsay"):
        published.read("table3_memory")
