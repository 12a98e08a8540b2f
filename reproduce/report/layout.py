"""Lay out a section on the page: what is visible, what is folded, and which parts can be selected.

Readers look at a page before they read it. A section therefore shows its sentence, its first picture and its first
table, and folds everything else. It also folds rows of which nothing has been run, if they are most of a table. The
page can show only one k or one scale. For this each part carries its value as data: a table or picture its scale, a
column the k of its head, and rows the k of their heading or of their column "k".
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from reproduce.grids.recipes import ACCUMULATIONS
from reproduce.presentation.content import Block, Column, Entry, Figure, Role, Section, Table


class Picture(NamedTuple):
    """A thumbnail: the first panel, without its axes, of a drawing that is shown elsewhere on the page.

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
    """Return the thumbnail of the section's first figure; None if the section has no figure."""
    for block in section.blocks:
        if isinstance(block, Figure) and (size := re.search(r'viewBox="0 0 (\S+) ([^"]+)"', block.svg)):
            box = [f"{value:g}" for value in block.panel] or ["0", "0", size[1], size[2]]
            return Picture(_identifier(block.key), size[1], size[2], box)
    return None


def arrange(section: Section) -> tuple[list[Block], list[Block]]:
    """Return the first picture and the first table of a section, and all its other blocks in their order."""
    firsts = (next((block for block in section.blocks if isinstance(block, kind)), None) for kind in (Figure, Table))
    first_blocks: list[Block] = [block for block in firsts if block is not None]
    return first_blocks, [block for block in section.blocks if not any(block is first for first in first_blocks)]


def split(table: Table) -> tuple[Table, Table | None]:
    """Split off the rows of which nothing has been run, if they are most of the table but not all of it.

    Returns:
        The table to show, and the table of the rows that were split off; None if there are none.

    """
    waiting = [row for row in table.rows if _waits(row)]
    if not len(table.rows) / 2 < len(waiting) < len(table.rows):
        return table, None
    begun = [row for row in table.rows if not _waits(row)]
    return replace(table, rows=begun), replace(table, key=f"not-run-{table.key}", rows=waiting, notes=())


def _waits(row: Sequence[Entry]) -> bool:
    """Return whether a row contains "not run" and no value that was measured, computed or published."""
    known = any(entry.role not in (Role.PLAIN, Role.MISSING) for entry in row)
    return not known and any(entry.text == "not run" for entry in row)


def name_svg(figure: Figure) -> str:
    """Return the drawing with an identifier that its thumbnail refers to."""
    return figure.svg.replace("<svg ", f'<svg id="svg-{_identifier(figure.key)}" ', 1)


def _identifier(key: str) -> str:
    """Turn a key into part of an identifier. It may contain the name of a folder or benchmark, with any characters."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", key)


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the upper line of a table's head: (group, number of adjacent columns in it)."""
    together = groupby(enumerate(columns), lambda at: at[1].group or at[0])  # or its position, if no group
    return [(group if isinstance(group, str) else "", len(list(columns))) for group, columns in together]


def k_of(row: Sequence[Entry], columns: Sequence[Column]) -> str:
    """Return the k of a row, from its column "k", if the paper uses this k; otherwise an empty string."""
    of_row = (entry.text for column, entry in zip(columns, row, strict=True) if column.name == "k")
    return next((k for k in of_row if k in map(str, ACCUMULATIONS)), "")


def k_of_head(head: str) -> str:
    """Return the k in a head of columns or rows; empty if it names none or several."""
    match = re.fullmatch(r"k = (\d+)", head)
    return match[1] if match else ""


def raw_differs(entry: Entry) -> bool:
    """Return whether the value that is sorted by and saved differs from the displayed text."""
    return str(entry.raw) != entry.text
