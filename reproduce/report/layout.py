"""How a section lies on the page: what is seen at once, what is folded, and which parts can be chosen.

People look before they read. So of a section its sentence, the first picture and the first table are shown, and all
else is folded; so are rows of which nothing has been run, where they are most of a table. What a reader may choose to
see alone (one k, one scale) every part carries as data: a table or picture its scale, a column the k of its head,
rows that of their heading, or a row that of its column "k".
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from reproduce.grids.recipes import ACCUMULATIONS
from reproduce.show.content import Block, Column, Entry, Figure, Section, Table, Tone

__all__ = [
    "Picture",
    "column_groups",
    "first_blocks",
    "k_of",
    "k_of_head",
    "named_svg",
    "other_blocks",
    "picture",
    "raw_differs",
    "split",
]


class Picture(NamedTuple):
    """A picture in small: the first panel, without its axes, of a drawing that is shown elsewhere on the page.

    Attributes:
        key: Key of the drawing.
        width: Width of the whole drawing.
        height: Height of the whole drawing.
        box: The part that is shown: x, y, width and height.

    """

    key: str
    width: str
    height: str
    box: Sequence[str]


def picture(section: Section) -> Picture | None:
    """Return the section's first picture; None if it has none."""
    for block in section.blocks:
        if isinstance(block, Figure) and (size := re.search(r'viewBox="0 0 (\S+) ([^"]+)"', block.svg)):
            box = [f"{value:g}" for value in block.panel] or ["0", "0", size[1], size[2]]
            return Picture(_identifier(block.key), size[1], size[2], box)
    return None


def first_blocks(section: Section) -> list[Block]:
    """The first picture and the first table."""
    figure = next((block for block in section.blocks if isinstance(block, Figure)), None)
    table = next((block for block in section.blocks if isinstance(block, Table)), None)
    return [block for block in (figure, table) if block is not None]


def other_blocks(section: Section) -> list[Block]:
    """All others, in their order."""
    shown = first_blocks(section)
    return [block for block in section.blocks if not any(block is one for one in shown)]


def split(table: Table) -> tuple[Table, Table | None]:
    """The table to show, and the one of its rows of which nothing has been run: where those are most of it, not all."""
    waiting = [row for row in table.rows if _waits(row)]
    if not len(table.rows) / 2 < len(waiting) < len(table.rows):
        return table, None
    begun = [row for row in table.rows if not _waits(row)]
    return replace(table, rows=begun), replace(table, key=f"not-run-{table.key}", rows=waiting, notes=())


def _waits(row: Sequence[Entry]) -> bool:
    """Whether it says "not run" and nothing that was measured, computed or published."""
    known = any(entry.tone not in (Tone.PLAIN, Tone.MISSING) for entry in row)
    return not known and any(entry.text == "not run" for entry in row)


def named_svg(figure: Figure) -> str:
    """The drawing with a name by which its small picture finds it."""
    return figure.svg.replace("<svg ", f'<svg id="svg-{_identifier(figure.key)}" ', 1)


def _identifier(key: str) -> str:
    """A key as part of an identifier: it may contain the name of a folder or a benchmark, which anybody can choose."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", key)


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The upper line of a table's head: (group, number of columns), neighbours of one group together."""
    together = groupby(enumerate(columns), lambda at: at[1].group or at[0])  # one without a group stands alone
    return [(group if isinstance(group, str) else "", len(list(of))) for group, of in together]


def k_of(row: Sequence[Entry], columns: Sequence[Column]) -> str:
    """The k that a row is of, by its column "k", if it is one that the paper has; empty: it is of no such."""
    of_row = (entry.text for column, entry in zip(columns, row, strict=True) if column.name == "k")
    return next((k for k in of_row if k in map(str, ACCUMULATIONS)), "")


def k_of_head(head: str) -> str:
    """The k that a head of columns or rows is of; empty: it is of none or of several."""
    match = re.fullmatch(r"k = (\d+)", head)
    return match[1] if match else ""


def raw_differs(entry: Entry) -> bool:
    """Whether what is sorted by and saved is more than what is read."""
    return str(entry.raw) != entry.text
