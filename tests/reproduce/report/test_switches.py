"""What of a table belongs to one k or one scale is read from the words that readers read."""

import pytest

from reproduce.report import switches
from reproduce.show.content import Column, Entry, Figure, Table, number, text


@pytest.mark.parametrize(
    ("words", "attributes"),
    [
        ("k = 4", ' data-k="4"'),
        ("PETRA, k = 32", ' data-k="32"'),
        ("J = 4; k = 1", ' data-k="1"'),
        ("CIFAR-10", ""),
        ("RevNet-18, width 12, k = 1: 3 seeds", ' data-k="1"'),
        ("k = 16, float32", ' data-k="16"'),
        ("k = 1 and 4", ""),  # of no one k
        ("k = 1, 4", ""),
        ("rank = 4", ""),
        ("scale “small”", ' data-scale="small"'),
        ("scale “small”, k = 8", ' data-k="8" data-scale="small"'),
    ],
)
def test_groups_of_columns_and_headings_of_rows(words: str, attributes: str) -> None:
    assert switches.of_column(words) == switches.of_heading(words) == attributes


def test_rows_by_their_columns_k_and_scale() -> None:
    columns = [Column("method"), Column("k"), Column("scale"), Column("kind")]
    assert switches.of_row(columns, [text("4"), number(16, 0), text("paper"), text("x")]) == (
        ' data-k="16" data-scale="paper"'
    )
    assert switches.of_row(columns, [text("4"), text("1, 4"), text("small scales"), text("x")]) == ""


@pytest.mark.parametrize(
    ("caption", "attributes"),
    [
        ("Accuracy (scale “small”, k = 4).", ' data-scale="small"'),
        ("Table 1, scale “smoke”; again scale “smoke”.", ' data-scale="smoke"'),
        ("scale “smoke” and scale “small”", ""),
        ("Published values.", ""),
    ],
)
def test_a_block_is_of_the_one_scale_that_its_caption_names(caption: str, attributes: str) -> None:
    assert switches.of_block(Table("key", caption, [Column("a")], [[Entry("x")]])) == attributes
    assert switches.of_block(Figure("key", "Title", "What is seen.", "<svg/>", caption)) == attributes
