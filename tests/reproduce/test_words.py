"""Numbers and lists in words."""

import pytest

from reproduce.words import conjunction, count


@pytest.mark.parametrize(("amount", "shown"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_count(amount: int, shown: str) -> None:
    assert count(amount, "cell") == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [([], ""), (["one"], "one"), (["one", "two"], "one and two"), (["one", "two", "three"], "one, two and three")],
)
def test_conjunction(words: list[str], shown: str) -> None:
    assert conjunction(words) == shown
