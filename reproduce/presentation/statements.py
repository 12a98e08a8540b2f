"""Judge sentences of a paper by intervals: the predicates of claims, and the verdicts on them.

A claim that is not refuted is not thereby confirmed: with few seeds an interval often decides neither, and the claim is
open. Only runs of the paper's size can agree with the paper. Smaller runs can show that the same holds, or does not
hold, at a smaller scale; they never agree with a published number.
"""

import enum
from collections.abc import Callable

from reproduce.presentation.compare import SeedSample
from reproduce.presentation.content import Entry, Role, estimate, missing, published_entry
from reproduce.presentation.statistics import MARGIN_POINTS, Estimate, Verdict, verdict, without_spread
from reproduce.published import Mark

#: Entry next to ours if the paper's values are not available.
UNKNOWN = published_entry("unknown", Mark.UNKNOWN)


class ClaimVerdict(enum.Enum):
    """Verdict of our data on a claim of a paper."""

    AGREE = "agree"
    DISAGREE = "disagree"
    SAME = "holds at a smaller scale"
    NOT_SO = "does not hold at a smaller scale"
    OPEN = "open"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """The condition for the verdict."""
        return {
            ClaimVerdict.AGREE: "runs of the paper's size show it: the published value lies in their 95 % interval, or "
            f"the whole interval lies within {MARGIN_POINTS:g} points of it",
            ClaimVerdict.DISAGREE: "runs of the paper's size exclude it",
            ClaimVerdict.SAME: "smaller runs show the same sign or rule, which says nothing about the published number",
            ClaimVerdict.NOT_SO: "smaller runs show the contrary, which says nothing about the published number",
            ClaimVerdict.OPEN: "there are runs, and they decide nothing",
            ClaimVerdict.UNKNOWN: "no run that bears on it is finished",
        }[self]

    @property
    def entry(self) -> Entry:
        """The verdict in its colour: only a disagreement at the paper's size is an alert."""
        roles = {ClaimVerdict.AGREE: Role.GOOD, ClaimVerdict.DISAGREE: Role.ALERT, ClaimVerdict.UNKNOWN: Role.MISSING}
        return Entry(self.value, role=roles.get(self, Role.OURS))


def compare(ours: Estimate, published: float) -> ClaimVerdict:
    """Compare a mean at the published size with a published value.

    They agree if the published value lies in the 95 % interval of the mean, or the whole interval lies within the
    margin around the published value. Otherwise they disagree. Without an interval or a spread the claim is open.
    """
    if ours.low is None or ours.high is None or without_spread(ours):
        return ClaimVerdict.OPEN
    near = ours.low >= published - MARGIN_POINTS and ours.high <= published + MARGIN_POINTS
    return ClaimVerdict.AGREE if near or ours.low <= published <= ours.high else ClaimVerdict.DISAGREE


def compare_with_published(sample: SeedSample | None, published: float) -> list[Entry]:
    """Format the difference between our mean and a published value, and the verdict; empty without values."""
    if sample is None or (ours := sample.estimate) is None:
        return [missing(""), missing("")]
    low, high = (None if end is None else end - published for end in (ours.low, ours.high))
    excess = Estimate(ours.mean - published, low, high, ours.counts, ours.freedom)
    return [estimate(excess, 2, sign=True), compare(ours, published).entry]


#: By the name that claims use: whether the ends of an interval show a predicate, and whether they show the contrary.
#: Only "above" has no margin, so that it also applies to quantities other than accuracy.
_SHOWN: dict[str, Callable[[float, float], tuple[bool, bool]]] = {
    "below": lambda low, high: (high < 0, low > 0 or (low >= -MARGIN_POINTS and high <= MARGIN_POINTS)),
    "above": lambda low, high: (low > 0, high < 0),
    "not below": lambda low, high: (low >= -MARGIN_POINTS, high < 0),
}


def holds(predicate: str, difference: Estimate | None) -> bool | None:
    """Return whether a predicate holds for a difference; None if undecided.

    - Below: the whole interval is negative. Otherwise it does not hold if the interval is positive or within ±margin.
    - Above: the whole interval is positive. It does not hold if the interval is negative.
    - Not below: the whole interval is above -margin. It does not hold if the interval is negative and reaches further.
    - Equal: the whole interval is within ±margin. It does not hold if the interval excludes 0 and reaches further.

    Args:
        predicate: "below", "above", "not below" or "equal".
        difference: The difference, if it is known.

    """
    if predicate == "equal":
        return {Verdict.EQUAL: True, Verdict.HIGHER: False, Verdict.LOWER: False}.get(verdict(difference))
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    confirmed, refuted = _SHOWN[predicate](difference.low, difference.high)
    return True if confirmed else False if refuted else None
