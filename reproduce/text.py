"""Format counts, lists and durations as English text."""

from collections.abc import Sequence


def count(amount: int, noun: str) -> str:
    """Format an amount with its noun: "1 cell", "2 cells"."""
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def conjunction(words: Sequence[str]) -> str:
    """Join words: "one", "one and two", "one, two and three"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def duration(seconds: float) -> str:
    """Format a duration, rounded, in a suitable unit: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def some(words: Sequence[str], limit: int = 6) -> str:
    """Join the first `limit` words with semicolons and state how many more there are."""
    rest = len(words) - limit
    return "; ".join(words[:limit]) + (f"; and {rest} more" if rest > 0 else "")
