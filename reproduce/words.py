"""Words for numbers and lists.

This module exports conjunction, count.
"""

from collections.abc import Sequence

__all__ = ["conjunction", "count"]


def count(amount: int, noun: str) -> str:
    """1 cell, 2 cells."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def conjunction(words: Sequence[str]) -> str:
    """One; one and two; one, two and three."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
