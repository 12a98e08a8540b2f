"""Numbers and lists in words."""

import pytest

from reproduce.words import conjunction, count, duration


@pytest.mark.parametrize(("amount", "shown"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_count(amount: int, shown: str) -> None:
    assert count(amount, "cell") == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [([], ""), (["one"], "one"), (["one", "two"], "one and two"), (["one", "two", "three"], "one, two and three")],
)
def test_conjunction(words: list[str], shown: str) -> None:
    assert conjunction(words) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (360_000, "100.0 h")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
