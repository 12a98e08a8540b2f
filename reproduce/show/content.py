"""What a table or figure hands to the report: data with captions, no HTML.

A module of a table that writes HTML mixes what is said with how it looks, and its numbers can be had no second time,
say as CSV. Here a module returns the values below; the report (`reproduce.report`) turns every one of them into HTML,
a download and an alternative text in one place, and all tables look alike.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from petra_core import methods
from petra_core.methods import Method
from reproduce.published import Mark
from reproduce.show.statistics import Estimate, Verdict

_SHORT_TITLES = {methods.DSP: "DSP"}
MINUS, TIMES, NARROW_SPACE = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{NARROW NO-BREAK SPACE}"
KILOBYTE, MEGABYTE, GIGABYTE = 1e3, 1e6, 1e9


class Tone(enum.Enum):
    """How an entry or a finding is to be read."""

    PLAIN = "plain"
    OURS = "ours"
    PUBLISHED = "published"
    MISSING = "missing"  # not run, not known, unfinished: said in words
    GOOD = "good"
    ALERT = "alert"


@dataclass(frozen=True)
class Entry:
    """One entry of a table."""

    text: str  # what is read
    value: float | str | None = None  # what is sorted by and downloaded, in full precision; None: the text
    tone: Tone = Tone.PLAIN
    hint: str = ""  # explanation of a few words, shown on hovering and read by screen readers
    mark: Mark | None = None  # of a published value, how well it is known
    code: bool = False  # whether it is a command, a hash or a file name

    @property
    def raw(self) -> float | str:
        """What the download holds."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Column:
    """Head of a column; columns of one `group` stand under a common head."""

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
    grouped: bool = False  # whether rows of one first entry stand together under it, as under a heading
    scale: str = ""  # name of the scale that all of it is of; empty: of none or of several

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key}: a row has {len(row)} entries for {len(self.columns)} columns")

    @property
    def shown_columns(self) -> Sequence[Column]:
        """The columns, less the one that gives the headings."""
        return self.columns[1:] if self.grouped else self.columns

    def bodies(self) -> list[tuple[str, list[Sequence[Entry]]]]:
        """The rows to show, under their headings; under one empty heading unless grouped."""
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
    description: str  # what can be seen in it, for who cannot see it
    svg: str
    caption: str  # what it shows, at which scale
    scale: str = ""  # name of the scale that all of it is of; empty: of none or of several
    #: Box of the first panel in the units of the drawing (x, y, width, height), without axes; empty: all of it.
    panel: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One line of the summary."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Listing:
    """Text whose lines matter, such as a patch; shown on demand."""

    key: str
    title: str
    text: str


Block = Table | Figure | Listing | str  # a str is a paragraph


class Standing(enum.Enum):
    """The verdicts on the claims about an exhibit, in a word."""

    REPRODUCED = "reproduced"  # all claims agree
    IN_PART = "reproduced in part"  # some agree, none disagrees
    DIFFERS = "differs"  # one disagrees
    SMALL_SCALE = "smaller scale only"  # no run of the paper's size decides
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Section:
    """All that the report says about one exhibit."""

    key: str  # name of its anchor; that of the published exhibit (`table3`) where there is one
    title: str
    blocks: Sequence[Block]  # tables, figures and paragraphs in order
    findings: Sequence[Finding] = ()  # its lines of the summary
    folded: Sequence[Block] = ()  # further blocks, shown on demand
    folded_title: str = "More"
    sentence: str = ""  # what it says
    standing: Standing | None = None  # the verdicts on the claims about it; None: there are none
    count: str = ""  # what has been run for it, in a few words: "60 of 360 cells"


# --- entries of common kinds


def short_title(method: Method) -> str:
    """The title of a method, for where there is little room."""
    return _SHORT_TITLES.get(method, method.title)


def in_prose(method: Method) -> str:
    """Return the short title of a method as it is written within a sentence: "delayed gradients", "PETRA"."""
    title = short_title(method)
    return title.lower() if title[1:].islower() else title


def code(value: str) -> Entry:
    """A command, a hash or a file name."""
    return Entry(value, code=True)


def number(value: float, digits: int, *, tone: Tone = Tone.OURS) -> Entry:
    """A number with `digits` decimals."""
    return Entry(signless(f"{value:,.{digits}f}"), value, tone)


def published(shown: str, mark: Mark, *, value: float | str | None = None) -> Entry:
    """A published value as it was published, with its mark."""
    return Entry(shown, value, Tone.PUBLISHED, mark=mark)


def missing(reason: str, hint: str = "") -> Entry:
    """Why there is no value."""
    return Entry(reason, tone=Tone.MISSING, hint=hint)


def none(hint: str) -> Entry:
    """There can be no value."""
    return Entry("\N{EN DASH}", "", Tone.MISSING, hint)


def estimate(value: Estimate, digits: int, *, sign: bool = False) -> Entry:
    """Mean and half the width of the 95 % interval; without the second if there is none."""
    mean = with_sign(value.mean, digits) if sign else signless(f"{value.mean:.{digits}f}")
    if value.half_width is None:
        return Entry(mean, value.mean, Tone.OURS, "a single run: no interval")
    return Entry(f"{mean}{NARROW_SPACE}±{NARROW_SPACE}{value.half_width:.{digits}f}", value.mean, Tone.OURS)


def relative_error(values: Sequence[float]) -> Entry:
    """The mean of relative errors and their range, to two digits, however small or large: 1.6e-07, 0.062, 1005.

    An interval around the mean would reach below 0 where one seed is far off, which no norm does.
    """
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Entry(two_digits(mean), mean, Tone.OURS, "one seed: no range")
    return Entry(f"{two_digits(mean)}, {two_digits(min(values))} to {two_digits(max(values))}", mean, Tone.OURS)


def verdict(value: Verdict) -> Entry:
    """A verdict in its colour: a method that loses accuracy is no alarm."""
    tones = {Verdict.EQUAL: Tone.GOOD, Verdict.HIGHER: Tone.GOOD, Verdict.LOWER: Tone.OURS, Verdict.OPEN: Tone.MISSING}
    return Entry(value.value, tone=tones[value])


def signless(shown: str) -> str:
    """A typographic minus, and none before a rounded 0."""
    digits = shown.lstrip("-")
    negative = shown.startswith("-") and any(c in "123456789" for c in digits)
    return (MINUS if negative else "") + digits


def with_sign(value: float, digits: int) -> str:
    """The number with its sign, and none before a rounded 0."""
    shown = signless(f"{value:.{digits}f}")
    positive = not shown.startswith(MINUS) and any(c in "123456789" for c in shown)
    return ("+" if positive else "") + shown


def two_digits(value: float) -> str:
    """The number to two digits; whole from 10 up to 100,000, where rounding it would only make it hard to read."""
    return f"{value:.0f}" if 10 <= value < 1e5 else f"{value:#.2g}"
