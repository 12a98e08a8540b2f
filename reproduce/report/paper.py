"""Wide tables on paper.

On a screen a table that is wider than the page scrolls within itself. Paper does not scroll: a browser that prints
makes everything smaller until the widest table fits, and nothing can be read any more. So a table of many columns is in
the page a second time, for print alone, cut between its groups of columns into parts that fit, each with the leading
columns that say what a row is.
"""

from collections.abc import Sequence
from dataclasses import replace

from reproduce.show.content import Column, Table

__all__ = ["column_groups", "parts"]

FITTING = 14  # columns


def parts(table: Table) -> list[Table]:
    """The table as it fits on paper: cut between groups of columns; nothing if it fits, or has nowhere to be cut."""
    if len(table.shown_columns) <= FITTING:
        return []
    leading = next((n for n, column in enumerate(table.columns) if column.group), len(table.columns))
    sheets: list[list[int]] = [[]]
    place = leading
    for _, width in column_groups(table.columns[leading:]):
        if sheets[-1] and leading + len(sheets[-1]) + width > FITTING:
            sheets.append([])
        sheets[-1] += range(place, place + width)
        place += width
    if len(sheets) == 1:
        return []
    return [_cut(table, [*range(leading), *chosen], f"part {n} of {len(sheets)}") for n, chosen in enumerate(sheets, 1)]


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The upper line of a table's head: (group, number of columns), neighbours of one group together."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and column.group and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return groups


def _cut(table: Table, chosen: Sequence[int], which: str) -> Table:
    return replace(
        table,
        caption=f"{table.caption} ({which})",
        columns=[table.columns[n] for n in chosen],
        rows=[[row[n] for n in chosen] for row in table.rows],
        notes=(),
    )
