"""Tables by declaration: a column says what it is called and what it shows of a row, in one place.

A table whose head is in one list and whose rows are made in another has two lists that must agree by position. Here a
`Field` is a column (or a difference with its verdict: two) with a function of the row. A row is anything: a place, a
measurement, a line of a frame.

    table(key="length", caption="…", rows=[3, 9, 27], fields=[
        number("epochs", lambda epochs: epochs),
        mean("PETRA, %", lambda epochs: accuracy["PETRA", epochs]),
        judged("points", lambda epochs: gaps[epochs], group="PETRA less backpropagation"),
    ])
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pandas import isna

from petra_core.methods import Method
from reproduce.published import Row
from reproduce.show.compare import CHOSEN, MIXED, NO_PAIR, Difference, Sample
from reproduce.show.content import Column, Entry, Table, Tone, missing, none, relative_error, short_title, with_sign
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.content import number as number_entry
from reproduce.show.content import published as published_entry
from reproduce.show.content import verdict as verdict_entry
from reproduce.show.statistics import Estimate

Of = Callable[[Any], Any]

BOTTOM = 1  # the lowest stage that reconstructs its input
RECONSTRUCTION = (
    "Error: norm of reconstructed less true over that of the true, mean and range of the seeds. Training: the engine's "
    "own inversion, 2(J-2) ticks after the forward. Rounding: the forward inverted with its own weights; the engine "
    "has no streams of bfloat16."
)


@dataclass(frozen=True)
class Field:
    """Columns that belong together, mostly one."""

    heads: Sequence[Column]
    entries: Callable[[Any], Sequence[Entry]]  # of a row, one for each head
    difference: Callable[[Any], object] | None = None  # of a row, where the columns are a difference and its verdict


def table(
    *,
    key: str,
    caption: str,
    rows: Iterable[Any],
    fields: Sequence[Field],
    notes: Sequence[str] = (),
    grouped: bool = False,
) -> Table:
    """A table (see `reproduce.show.content.Table`) of these rows with these fields, a line a row.

    Where the sides of a difference ran on different machines, its last note explains the mark.
    """
    rows = list(rows)
    shown = [of(row) for of in (field.difference for field in fields) if of for row in rows]
    if any(isinstance(difference, Difference) and difference.mixed for difference in shown):
        notes = [*notes, f"{MIXED}: the two sides ran on different processors, devices or versions of torch."]
    if any(CHOSEN in f"{head.group}{head.name}" for field in fields for head in field.heads):
        notes = [*notes, f"{CHOSEN}: chosen by test accuracy, which flatters it."]
    return Table(
        key=key,
        caption=caption,
        columns=[head for field in fields for head in field.heads],
        rows=[[shown for field in fields for shown in field.entries(row)] for row in rows],
        notes=tuple(note for note in dict.fromkeys(notes) if note),
        grouped=grouped,
    )


def entry(name: str, of: Of, *, group: str = "", hint: str = "", numeric: bool = True) -> Field:
    """A column of entries that are made by hand."""
    return Field([Column(name, numeric, group, hint)], lambda row: [of(row)])


def words(name: str, of: Of, *, group: str = "", hint: str = "") -> Field:
    """A column of words, not numbers; an entry is left as it is, None is nothing, a truth yes or no."""
    return entry(name, lambda row: _words(of(row)), group=group, hint=hint, numeric=False)


def named(*names: str) -> Field:
    """Columns of words, each called as the key under which a row, a mapping, has them; nothing where it has none."""
    heads = [Column(name.replace("_", " "), numeric=False) for name in names]
    return Field(heads, lambda row: [_words(row.get(name)) for name in names])


def method(name: str, of: Callable[[Any], Method]) -> Field:
    """A column of methods by their short titles, the full ones as tooltips."""

    def shown(row: Any) -> Entry:
        title, short = of(row).title, short_title(of(row))
        return Entry(short, hint=title if short != title else "")

    return entry(name, shown, numeric=False)


def number(name: str, of: Of, digits: int = 0, *, group: str = "", hint: str = "") -> Field:
    """A column of numbers that are settings: k, J, epochs."""
    return _numbers(name, of, lambda value: number_entry(value, digits, tone=Tone.PLAIN), group, hint)


def amount(name: str, of: Of, digits: int, *, group: str = "", hint: str = "", without: str = "") -> Field:
    """A column of numbers that were measured or computed here; `without`: stands where there is none (None or NaN)."""
    return _numbers(name, of, lambda value: number_entry(value, digits), group, hint, without)


def amounts(
    names: Mapping[Any, str],
    of: Callable[[Any], Mapping[Any, float]],
    digits: int,
    *,
    group: str = "",
    without: str = "",
) -> Field:
    """Columns of such numbers, one for each key of what is given of a row; `names`: how the columns are called."""
    heads = [Column(name, group=group) for name in names.values()]

    def shown(value: float) -> Entry:
        return missing(without) if isna(value) else number_entry(float(value), digits)

    return Field(heads, lambda row: [shown(of(row)[key]) for key in names])


def difference(name: str, of: Of, digits: int, *, group: str = "", hint: str = "", exact: bool = False) -> Field:
    """A column of differences that were measured or computed here, with their signs.

    `exact`: there should be none, and any is an alert.
    """

    def signed(value: float) -> Entry:
        return Entry(with_sign(value, digits), value, Tone.ALERT if exact and value else Tone.OURS)

    return _numbers(name, of, signed, group, hint)


def estimated(name: str, of: Callable[[Any], Estimate | None], *, group: str = "", hint: str = "") -> Field:
    """A column of means ± half the 95 % interval, to three decimals, without the number of seeds; None: not defined."""

    def shown(row: Any) -> Entry:
        value = of(row)
        return none("not defined") if value is None else estimate_entry(value, 3)

    return entry(name, shown, group=group, hint=hint)


def mean(name: str, of: Callable[[Any], Sample | None], digits: int = 2, *, group: str = "") -> Field:
    """A column of means ± half the 95 % interval (seeds); without values how far the runs are; None is nothing."""

    def shown(row: Any) -> Entry:
        sample = of(row)
        return missing("") if sample is None else mean_entry(sample, digits)

    return entry(name, shown, group=group)


def mean_entry(sample: Sample, digits: int = 2) -> Entry:
    """Mean ± half the 95 % interval and the number of seeds; without any, how far the runs are."""
    if sample.estimate is None:
        return missing(sample.summary, sample.unfinished)
    shown = estimate_entry(sample.estimate, digits)
    return replace(shown, text=f"{shown.text} ({sample.seeds})", hint=sample.unfinished or shown.hint)


def error(name: str, of: Callable[[Any], Sample | None], *, group: str = "") -> Field:
    """A column of mean relative errors with their range (seeds); see `content.relative_error`. None is nothing."""

    def shown(row: Any) -> Entry:
        sample = of(row)
        if sample is None:
            return missing("")
        if sample.estimate is None:
            return missing(sample.summary, sample.unfinished)
        shown_error = relative_error(list(sample.values.values()))
        return replace(shown_error, text=f"{shown_error.text} ({sample.seeds})")

    return entry(name, shown, group=group)


def judged(
    name: str, of: Callable[[Any], Difference | list[Entry] | str | None], *, digits: int = 2, group: str = ""
) -> Field:
    """Two columns: a difference with the runs of its sides, and its verdict.

    Words stand where there is no difference, "reference" where there is None, as of what the others are compared with;
    a pair of entries is left as it is.
    """

    def entries(row: Any) -> list[Entry]:
        difference = of(row)
        if isinstance(difference, Difference):
            return difference_entries(difference, digits)
        if isinstance(difference, list):
            return difference
        return [missing("reference" if difference is None else difference), missing("")]

    return Field([Column(name, group=group), Column("verdict", numeric=False, group=group)], entries, of)


def compared(name: str, of: Callable[[Any], Difference | None], digits: int, *, group: str = "") -> Field:
    """A column of differences of what has no margin, such as a loss: with the runs of the sides, without a verdict."""
    nothing = Sample() - Sample()
    return Field([Column(name, group=group)], lambda row: difference_entries(of(row) or nothing, digits)[:1], of)


def difference_entries(difference: Difference, digits: int = 2) -> list[Entry]:
    """Format a difference, with the number of runs of each side and of broken ones, and its verdict."""
    estimate = difference.estimate
    if estimate is None:
        return [missing(NO_PAIR), missing("")]
    points = estimate_entry(estimate, digits, sign=True)
    broken = f"; {difference.wrecks} broken" * bool(difference.wrecks)
    text = f"{points.text} ({estimate.n}{broken}){MIXED * bool(difference.mixed)}"
    hint = f"sides ran on: {difference.mixed}" if difference.mixed else points.hint
    return [replace(points, text=text, hint=hint), verdict_entry(difference.verdict)]


def published_value(row: Row, column: str, unit: str = "") -> Entry:
    """The number in a column of a published row, as it was published."""
    return published_entry(row[column] + unit, row.mark, value=row.number(column))


def _words(value: object) -> Entry:
    if isinstance(value, Entry):
        return value
    if isinstance(value, bool):
        return Entry("yes" if value else "no")
    return missing("") if value is None else Entry(str(value))


def _numbers(name: str, of: Of, form: Callable[[float], Entry], group: str, hint: str, without: str = "") -> Field:
    def shown(row: Any) -> Entry:
        value = of(row)
        if isinstance(value, Entry):
            return value
        return missing(without) if isna(value) else form(float(value))

    return entry(name, shown, group=group, hint=hint)
