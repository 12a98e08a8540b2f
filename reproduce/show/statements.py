"""What the paper states about an exhibit whose values are not at hand, and whether our data say the same.

A statement ("the gap closes as k grows and is gone at k = 32") is taken apart into claims that an interval can confirm
or refute. Not refuted is not confirmed: with few seeds most claims are neither, and then the answer is that the data
cannot tell.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reproduce import published
from reproduce.published import Mark
from reproduce.show.content import Entry, Finding, Tone, estimate, missing
from reproduce.show.content import published as published_entry
from reproduce.show.statistics import MARGIN_POINTS, Estimate, Verdict, verdict, without_spread

#: Beside ours where the paper's values are not at hand.
UNKNOWN = published_entry("unknown", Mark.UNKNOWN)


class Outcome(enum.Enum):
    """What our data say to a statement."""

    AGREE = "agree"
    DISAGREE = "disagree"
    CANNOT_TELL = "cannot tell"

    @property
    def verb(self) -> str:
        """What our data do, as it follows the words "our data"."""
        return f"{self.value} with it" if self is not Outcome.CANNOT_TELL else self.value


@dataclass(frozen=True)
class Statement:
    """A sentence of the paper about an exhibit."""

    words: str  # as they were at hand
    mark: Mark  # how well it is known

    @property
    def quoted(self) -> str:
        return f"“{self.words}” ({self.mark.value})"

    @property
    def entry(self) -> Entry:
        return published_entry(self.words, self.mark)


def of(key: str) -> Statement:
    """The statement about the exhibit called `key`. Raises ValueError if there is none."""
    for row in published.read("exhibits"):
        if row["key"] == key and row["statement"]:
            return Statement(row["statement"], Mark(row["statement_source"]))
    raise ValueError(f"exhibits.csv has no statement about {key!r}")


def combine(claims: Iterable[bool | None]) -> Outcome:
    """The outcome of a statement of several claims: each is true, false, or (None) not decided by the data."""
    verdicts = list(claims)
    if False in verdicts:
        return Outcome.DISAGREE
    return Outcome.CANNOT_TELL if None in verdicts else Outcome.AGREE


def compare(ours: Estimate, published: float) -> Outcome:
    """Compare a mean at the published scale with a published value.

    They agree if the published value lies in the 95 % interval of the mean, or the whole interval within the margin
    around the published value; else they disagree. Without an interval the data cannot tell.
    """
    if ours.low is None or ours.high is None or without_spread(ours):
        return Outcome.CANNOT_TELL
    near = ours.low >= published - MARGIN_POINTS and ours.high <= published + MARGIN_POINTS
    return Outcome.AGREE if near or ours.low <= published <= ours.high else Outcome.DISAGREE


def published_difference(ours: Estimate | None, published: float) -> list[Entry]:
    """Format our mean less a published value, and what follows."""
    if ours is None:
        return [missing(""), missing("")]
    low, high = (None if end is None else end - published for end in (ours.low, ours.high))
    less = Estimate(ours.mean - published, low, high, ours.counts, ours.freedom)
    return [estimate(less, 2, sign=True), outcome_entry(compare(ours, published))]


def is_below(difference: Estimate | None) -> bool | None:
    """Is it negative? Yes if the whole interval is; no if the whole interval is positive, or around 0 and small."""
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    if difference.high < 0:
        return True
    return False if difference.low > 0 or verdict(difference) is Verdict.EQUAL else None


def is_above(difference: Estimate | None) -> bool | None:
    """Is it positive? Yes if the whole interval is; no if it is negative; no margin, as for what is not accuracy."""
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    return None if difference.low <= 0 <= difference.high else difference.low > 0


def is_not_below(difference: Estimate | None) -> bool | None:
    """Is it positive or small? Yes if the whole interval is above -margin; no if it is negative and reaches beyond."""
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    if difference.low >= -MARGIN_POINTS:
        return True
    return False if difference.high < 0 else None


def answer(
    title: str, scale: str, statement: Statement, said: str, outcomes: Iterable[Outcome]
) -> Iterator[Finding | Outcome]:
    """The line of the summary, the statement and what is said to it, and the outcomes.

    Only at the paper's own scale is it alarming to disagree with the paper.
    """
    made = set(outcomes)
    alarms = scale == "paper" and Outcome.DISAGREE in made
    tone = Tone.ALERT if alarms else Tone.MISSING if made == {Outcome.CANNOT_TELL} else Tone.PLAIN
    yield Finding(f"{title}. Stated is {statement.quoted}; {said}.", tone)
    yield from made


def claim_entries(difference: Estimate | None, outcome: Outcome) -> list[Entry]:
    """What a statement is about, in points of accuracy, and what follows."""
    shown = estimate(difference, 2, sign=True) if difference else missing("no pair")
    return [shown, outcome_entry(outcome)]


def outcome_entry(outcome: Outcome) -> Entry:
    """An outcome in its colour."""
    tones = {Outcome.AGREE: Tone.GOOD, Outcome.DISAGREE: Tone.ALERT, Outcome.CANNOT_TELL: Tone.MISSING}
    return Entry(outcome.value, tone=tones[outcome])
