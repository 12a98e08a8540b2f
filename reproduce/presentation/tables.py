"""Declare tables: a field gives the head of a column and computes its entry from a row, in one place.

If the head of a table were in one list and its rows were made in another, the two lists would have to agree by
position. Here a `Field` is a column, or two for a difference with its verdict, with a function of the row. A row is any
object: a place, a measurement, a row of a frame.

    table(key="length", caption="…", rows=[3, 9, 27], fields=[
        number("epochs", lambda epochs: epochs),
        mean("PETRA, %", lambda epochs: accuracy["PETRA", epochs]),
        judged_columns("points", lambda epochs: gaps[epochs], group="PETRA − backpropagation"),
    ])
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pandas import isna

from petra_core.methods import Method
from reproduce.presentation import content
from reproduce.presentation.compare import CHOSEN, MIXED, NO_PAIR, Difference, SeedSample
from reproduce.presentation.content import Column, Entry, Role, Table, missing, none
from reproduce.presentation.statistics import Estimate
from reproduce.published import Row

Of = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """One column, or two for a difference with its verdict."""

    heads: Sequence[Column]
    entries: Callable[[Any], Sequence[Entry]]  # computes one entry for each head from a row
    heading: bool = False  # whether it is the first column, and an entry becomes a heading above the rows that share it


def table(*, key: str, caption: str, rows: Iterable[Any], fields: Sequence[Field], notes: Sequence[str] = ()) -> Table:
    """Return a table (see `reproduce.presentation.content.Table`) with a line for each row and these fields.

    If the sides of a difference ran on different machines, its last note explains the mark.
    """
    made = [[entry for field in fields for entry in field.entries(row)] for row in rows]
    if any(MIXED in entry.text for row in made for entry in row):
        notes = [*notes, f"{MIXED}: the two sides ran on different processors, devices or versions of torch."]
    if any(CHOSEN in f"{head.group}{head.name}" for field in fields for head in field.heads):
        notes = [*notes, f"{CHOSEN}: chosen by test accuracy, which flatters it."]
    return Table(
        key=key,
        caption=caption,
        columns=[head for field in fields for head in field.heads],
        rows=made,
        notes=tuple(note for note in dict.fromkeys(notes) if note),
        grouped=fields[0].heading,
    )


def entry(name: str, value_of: Of, *, group: str = "", hint: str = "", numeric: bool = True) -> Field:
    """Return a column of entries that the caller makes."""
    return Field([Column(name, numeric, group, hint)], lambda row: [value_of(row)])


def words(name: str, value_of: Of, *, group: str = "", hint: str = "", heading: bool = False) -> Field:
    """Return a column of text. An `Entry` is used as it is, None is shown as empty, and a bool as yes or no.

    With `heading` it is the first column, and each of its entries becomes a heading above the rows that share it.
    """
    column = entry(name, lambda row: _words(value_of(row)), group=group, hint=hint, numeric=False)
    return replace(column, heading=heading)


def method(value_of: Callable[[Any], Method]) -> Field:
    """Return the column of methods by their short titles, with the full titles as tooltips."""

    def make(row: Any) -> Entry:
        title, short = value_of(row).title, content.short_title(value_of(row))
        return Entry(short, hint=title if short != title else "")

    return entry("method", make, numeric=False)


def number(name: str, value_of: Of, digits: int | None = None) -> Field:
    """Return a column of numbers that are settings: k, J, epochs, a momentum.

    Without `digits` each number has the decimals that it needs: 4 and 0.9.
    """

    def make(value: float) -> Entry:
        exact = np.format_float_positional(value, precision=6, trim="-")
        return content.number(value, len(exact.partition(".")[2]) if digits is None else digits, role=Role.PLAIN)

    return _numbers(name, value_of, make)


def amount(name: str, value_of: Of, digits: int, *, group: str = "", hint: str = "", without: str = "") -> Field:
    """Return a column of measured or computed numbers; `without` is the text for None and NaN."""
    return _numbers(name, value_of, lambda value: content.number(value, digits), group, hint, without)


def amounts(
    names: Mapping[Any, str],
    value_of: Callable[[Any], Mapping[Any, float]],
    digits: int,
    *,
    group: str = "",
    without: str = "",
) -> list[Field]:
    """Return columns of measured or computed numbers, one for each key of the mapping that a row has.

    Args:
        names: Heads of the columns by key.
        value_of: Returns the values of a row by key.
        digits: Number of decimals.
        group: Common head of the columns.
        without: Text for None and NaN.

    """

    def column(key: Any, name: str) -> Field:
        return amount(name, lambda row: value_of(row)[key], digits, group=group, without=without)

    return [column(key, name) for key, name in names.items()]


def difference(name: str, value_of: Of, digits: int, *, group: str = "") -> Field:
    """Return a column of measured or computed differences, with their signs."""

    def format_signed(value: float) -> Entry:
        return Entry(content.with_sign(value, digits), value, Role.OURS)

    return _numbers(name, value_of, format_signed, group)


def estimate_column(
    name: str,
    value_of: Callable[[Any], Estimate | None],
    digits: int = 3,
    *,
    group: str = "",
    hint: str = "",
    sign: bool = False,
) -> Field:
    """Return a column of means ± half-width of the 95 % interval; None is shown as not defined."""

    def make(row: Any) -> Entry:
        value = value_of(row)
        return none("not defined") if value is None else content.estimate(value, digits, sign=sign)

    return entry(name, make, group=group, hint=hint)


def mean(name: str, value_of: Callable[[Any], SeedSample | None], digits: int = 2, *, group: str = "") -> Field:
    """Return a column of means ± half-width of the 95 % interval (seeds).

    Samples without values show the state of their runs. None is shown as empty.
    """
    return entry(name, lambda row: mean_entry(value_of(row), digits), group=group)


def mean_entry(sample: SeedSample | None, digits: int = 2) -> Entry:
    """Format mean ± half-width of the 95 % interval and the number of seeds; without values, the state of the runs."""
    if sample is None:
        return missing("")
    if sample.estimate is None:
        return missing(sample.summary, sample.unfinished)
    made = content.estimate(sample.estimate, digits)
    return replace(made, text=f"{made.text} ({sample.seeds})", hint=sample.unfinished or made.hint)


def error(name: str, value_of: Callable[[Any], SeedSample | None], *, group: str = "") -> Field:
    """Return a column of mean relative errors with their range (seeds); see `content.relative_error`. None is empty."""

    def make(row: Any) -> Entry:
        sample = value_of(row)
        if sample is None or not sample.values:
            return mean_entry(sample)
        shown_error = content.relative_error(list(sample.values.values()))
        return replace(shown_error, text=f"{shown_error.text} ({sample.seeds})")

    return entry(name, make, group=group)


def judged_columns(
    name: str, value_of: Callable[[Any], Difference | list[Entry] | str | None], *, digits: int = 2, group: str = ""
) -> Field:
    """Return two columns: a difference with the runs of its sides, and its verdict.

    A text instead of a difference is shown as it is, and so is a pair of entries. None is shown as "reference", for
    the row that the others are compared with.
    """

    def entries(row: Any) -> list[Entry]:
        difference = value_of(row)
        if isinstance(difference, Difference):
            return difference_entries(difference, digits)
        if isinstance(difference, list):
            return difference
        return [missing("reference" if difference is None else difference), missing("")]

    return Field([Column(name, group=group), Column("verdict", numeric=False, group=group)], entries)


def difference_column(name: str, value_of: Callable[[Any], Difference], digits: int, *, group: str = "") -> Field:
    """Return a column of differences without a verdict, for a quantity without a margin, such as a loss."""
    return Field([Column(name, group=group)], lambda row: difference_entries(value_of(row), digits)[:1])


def difference_entries(difference: Difference, digits: int = 2) -> list[Entry]:
    """Format a difference, with the number of runs of each side and of broken runs, and its verdict."""
    estimate = difference.estimate
    if estimate is None:
        return [missing(NO_PAIR), missing("")]
    points = content.estimate(estimate, digits, sign=True)
    broken = f"; {difference.wrecks} broken" * bool(difference.wrecks)
    text = f"{points.text} ({estimate.n}{broken}){MIXED * bool(difference.mixed)}"
    hint = f"sides ran on: {difference.mixed}" if difference.mixed else points.hint
    return [replace(points, text=text, hint=hint), content.verdict(difference.verdict)]


def published_value(row: Row, column: str, unit: str = "") -> Entry:
    """Return an entry with the number in a column of a published row, as it was published."""
    return content.published_entry(row[column] + unit, row.mark, value=row.number(column))


def _words(value: object) -> Entry:
    if isinstance(value, Entry):
        return value
    if isinstance(value, bool):
        return Entry("yes" if value else "no")
    return missing("") if value is None else Entry(str(value))


def _numbers(
    name: str, value_of: Of, form: Callable[[float], Entry], group: str = "", hint: str = "", without: str = ""
) -> Field:
    def make(row: Any) -> Entry:
        value = value_of(row)
        if isinstance(value, Entry):
            return value
        return missing(without) if isna(value) else form(float(value))

    return entry(name, make, group=group, hint=hint)
