"""What a reader may choose to see: all k or one, all scales or one.

The page holds everything; its script hides what is not chosen. For that, every part of a table carries what it is about
as a `data-` attribute. No table says so just for this: a column stands under a group "k = 4", a row under a heading
that ends in "k = 4" or in a table with a column "k"; what is of one scale names it in its caption ("scale “small”"),
as readers need it anyhow.
"""

import re
from collections.abc import Sequence

from markupsafe import Markup

from reproduce.show.content import Column, Entry, Figure, Table

__all__ = ["of_block", "of_column", "of_heading", "of_row"]

_PATTERNS = {"k": re.compile(r"(?:^|[,;] )k = (\d+)(?=$|[:;]|, \D)"), "scale": re.compile(r"scale “(\w+)”")}
_VALUES = {"k": re.compile(r"\d+"), "scale": re.compile(r"[a-z]\w*")}


def of_block(block: Table | Figure) -> Markup:
    """The scale of a whole table or drawing, if its caption names just one."""
    named = set(_PATTERNS["scale"].findall(block.caption))
    return _attributes({"scale": named.pop()} if len(named) == 1 else {})


def of_column(group: str) -> Markup:
    """Of columns under a common head."""
    return _attributes(_named(group))


def of_heading(heading: str) -> Markup:
    """Of the rows under a heading."""
    return _attributes(_named(heading))


def of_row(columns: Sequence[Column], row: Sequence[Entry]) -> Markup:
    """Of one row, by its entries in columns called "k" or "scale"."""
    found = {column.name: entry.text for column, entry in zip(columns, row, strict=True) if column.name in _VALUES}
    return _attributes({name: value for name, value in found.items() if _VALUES[name].fullmatch(value)})


def _named(words: str) -> dict[str, str]:
    return {name: match[1] for name, pattern in _PATTERNS.items() if (match := pattern.search(words))}


def _attributes(chosen: dict[str, str]) -> Markup:
    return Markup("").join(Markup(' data-{}="{}"').format(name, value) for name, value in chosen.items())
