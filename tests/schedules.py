"""Schedules as text: what `str` of one gives, and what tests write by hand, read back."""

import re

from petra_core.methods import by_name
from petra_core.schedule import Action, Kind, Schedule, Turn

HEADER = re.compile(r"(?P<method>\w+) J=(?P<stages>\d+) k=(?P<accumulation>\d+)(?: r=(?P<replicas>[\d,]+))?")


def parse(text: str) -> Schedule:
    """The schedule of that text; indentation, blank lines and the widths of columns do not matter."""
    first, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = HEADER.fullmatch(first)
    assert header is not None, f"a header such as PETRA J=4 k=1 was expected, got {first!r}"
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    numbers = [int(label.removeprefix("tick ")) for label, *_ in rows]
    first_tick = numbers[0] if numbers else 0
    assert numbers == list(range(first_tick, first_tick + len(rows)))
    return Schedule(
        by_name(header["method"]),
        int(header["stages"]),
        int(header["accumulation"]),
        tuple(tuple(map(_turn, cells)) for _, *cells in rows),
        first_tick,
        tuple(map(int, header["replicas"].split(","))) if header["replicas"] else (),
    )


def _turn(cell: str) -> Turn:
    words = () if cell == "-" else cell.split()
    return tuple(Action(Kind(word[0]), int(word[1:])) for word in words)
