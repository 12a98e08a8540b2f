"""Durations as people write them: `1h30m` on the command line, "1.5 h" in a plan.

This module exports parse, words.
"""

import re

__all__ = ["parse", "words"]

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_SECONDS = (3600, 60, 1)


def parse(text: str) -> float:
    """Seconds of a duration such as `30m`, `2h`, `90s`, `1h30m` or `0.5h`.

    Raises:
        ValueError: it is none, or zero.

    """
    match = _DURATION.fullmatch(text.strip().lower())
    parts = match.groups() if match else ()
    seconds = sum(float(part) * unit for part, unit in zip(parts, _SECONDS, strict=False) if part)
    if not seconds:
        raise ValueError(f"{text!r} is no duration above zero: hours, minutes and seconds, such as 2h, 1h30m, 30m, 90s")
    return seconds


def words(seconds: float) -> str:
    """About how long, in the unit that suits it: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
