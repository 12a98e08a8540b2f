"""Define what exhibits pass to the report: data with captions, without HTML.

If an exhibit wrote HTML itself, content and appearance would be mixed, and its numbers could not be exported, for
example as CSV. Therefore exhibits return the values below. The report (`reproduce.report`) turns each of them into
HTML, a download and an alternative text in one place, so that all tables look alike.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from petra_core import methods
from petra_core.methods import Method
from reproduce.presentation.statistics import Estimate, Verdict
from reproduce.published import Mark

MINUS, TIMES, NARROW_SPACE = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{NARROW NO-BREAK SPACE}"
MEGABYTE, GIGABYTE = 1e6, 1e9


class Role(enum.Enum):
    """Meaning of an entry or a finding, which determines its style."""

    PLAIN = "plain"
    OURS = "ours"
    PUBLISHED = "published"
    MISSING = "missing"  # not run, not known or unfinished; a text gives the reason
    GOOD = "good"
    ALERT = "alert"


@dataclass(frozen=True)
class Entry:
    """One entry of a table."""

    text: str  # displayed text
    value: float | str | None = None  # value to sort by and to download, in full precision; None: the text
    role: Role = Role.PLAIN
    hint: str = ""  # short explanation, shown as a tooltip and read by screen readers
    mark: Mark | None = None  # how well a published value is known
    code: bool = False  # whether it is a command, a hash or a file name

    @property
    def raw(self) -> float | str:
        """The value in the download."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Column:
    """Head of a column; columns of one `group` have a common head."""

    name: str
    numeric: bool = True
    group: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table."""

    key: str  # name of its anchor and of its download
    caption: str  # what it shows, at which scale, in which unit
    columns: Sequence[Column]  # one for each entry of a row
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()  # remarks below it
    grouped: bool = False  # whether the first entry of rows becomes a heading above the rows that share it
    scale: str = ""  # name of the scale of all its content; empty: no scale, or several

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key}: a row has {len(row)} entries for {len(self.columns)} columns")

    @property
    def shown_columns(self) -> Sequence[Column]:
        """The columns, without the one that provides the headings."""
        return self.columns[1:] if self.grouped else self.columns

    def bodies(self) -> list[tuple[str, list[Sequence[Entry]]]]:
        """Return the displayed rows under their headings; without grouping under a single empty heading."""
        if not self.grouped:
            return [("", list(self.rows))]
        by_heading: dict[str, list[Sequence[Entry]]] = {}
        for row in self.rows:
            by_heading.setdefault(row[0].text, []).append(row[1:])
        return list(by_heading.items())


@dataclass(frozen=True)
class Figure:
    """A drawing."""

    key: str  # name of its anchor and of its download
    title: str  # short name, also its accessible name
    svg: str  # with the title and a description for readers who cannot see it
    caption: str  # what it shows, at which scale
    scale: str = ""  # name of the scale of all its content; empty: no scale, or several
    #: Box of the first panel in the units of the drawing (x, y, width, height), without axes; empty: the whole drawing.
    panel: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One line of the summary."""

    text: str
    role: Role = Role.PLAIN


@dataclass(frozen=True)
class Listing:
    """Text with significant line breaks, such as a patch; shown on demand."""

    key: str
    title: str
    text: str


Block = Table | Figure | Listing | str  # a str is a paragraph


@dataclass(frozen=True)
class Section:
    """The content of the report for one exhibit."""

    key: str  # name of its anchor; the key of the published exhibit (`table3`) if there is one
    title: str
    blocks: Sequence[Block]  # tables, figures and paragraphs in order
    findings: Sequence[Finding] = ()  # its lines of the summary
    folded: Sequence[Block] = ()  # further blocks, shown on demand
    folded_title: str = "More"
    sentence: str = ""  # its summary in one sentence
    count: str = ""  # how much of it has been run: "60 of 360 cells"


# --- entries of common kinds


def short_title(method: Method) -> str:
    """Return the title of a method for narrow places."""
    return "DSP" if method is methods.DSP else method.title


def in_prose(method: Method) -> str:
    """Return the short title of a method in the spelling within a sentence: "delayed gradients", "PETRA"."""
    title = short_title(method)
    return title.lower() if title[1:].islower() else title


def code(value: str) -> Entry:
    """Return an entry with a command, a hash or a file name."""
    return Entry(value, code=True)


def number(value: float, digits: int, *, role: Role = Role.OURS) -> Entry:
    """Return an entry with a number with `digits` decimals."""
    return Entry(signless(f"{value:,.{digits}f}"), value, role)


def published_entry(text: str, mark: Mark, *, value: float | str | None = None) -> Entry:
    """Return an entry with a published value as it was published, with its mark."""
    return Entry(text, value, Role.PUBLISHED, mark=mark)


def missing(reason: str, hint: str = "") -> Entry:
    """Return an entry with the reason why there is no value."""
    return Entry(reason, role=Role.MISSING, hint=hint)


def none(hint: str) -> Entry:
    """Return an entry for a value that cannot exist."""
    return Entry("\N{EN DASH}", "", Role.MISSING, hint)


def estimate(value: Estimate, digits: int, *, sign: bool = False) -> Entry:
    """Return an entry with the mean and the half-width of the 95 % interval, if there is one."""
    mean = with_sign(value.mean, digits) if sign else signless(f"{value.mean:.{digits}f}")
    if value.half_width is None:
        return Entry(mean, value.mean, Role.OURS, "a single run: no interval")
    return Entry(f"{mean}{NARROW_SPACE}±{NARROW_SPACE}{value.half_width:.{digits}f}", value.mean, Role.OURS)


def relative_error(values: Sequence[float]) -> Entry:
    """Return an entry with the mean and range of relative errors, to two significant digits: 1.6e-07, 0.062, 1,005.

    A range is used instead of an interval around the mean, which would reach below 0 if one seed is far from the
    others, although a norm cannot be negative.
    """
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Entry(two_digits(mean), mean, Role.OURS, "one seed: no range")
    return Entry(f"{two_digits(mean)}; {two_digits(min(values))} to {two_digits(max(values))}", mean, Role.OURS)


def verdict(value: Verdict) -> Entry:
    """Return a verdict in its colour. A method that loses accuracy is not an alert."""
    roles = {Verdict.EQUAL: Role.GOOD, Verdict.HIGHER: Role.GOOD, Verdict.LOWER: Role.OURS, Verdict.OPEN: Role.MISSING}
    return Entry(value.value, role=roles[value])


def signless(text: str) -> str:
    """Use a typographic minus, and drop the sign of a number that rounds to 0."""
    digits = text.lstrip("-")
    negative = text.startswith("-") and any(c in "123456789" for c in digits)
    return (MINUS if negative else "") + digits


def with_sign(value: float, digits: int) -> str:
    """Format a number with its sign, and without one if it rounds to 0."""
    text = signless(f"{value:.{digits}f}")
    positive = not text.startswith(MINUS) and any(c in "123456789" for c in text)
    return ("+" if positive else "") + text


def two_digits(value: float) -> str:
    """Format a number to two significant digits, but as a whole number from 10 to 100,000, which is easier to read."""
    return f"{value:,.0f}" if 10 <= value < 1e5 else f"{value:#.2g}"
