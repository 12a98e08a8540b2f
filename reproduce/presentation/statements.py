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


def compare(ours: Estimate, published: float, margin: float = MARGIN_POINTS) -> ClaimVerdict:
    """Compare a mean at the published size with a published value.

    They agree if the published value lies in the 95 % interval of the mean, or the whole interval lies within the
    margin around the published value. Otherwise they disagree. Without an interval the claim is open.
    """
    if ours.low is None or ours.high is None or without_spread(ours):
        return ClaimVerdict.OPEN
    near = ours.low >= published - margin and ours.high <= published + margin
    return ClaimVerdict.AGREE if near or ours.low <= published <= ours.high else ClaimVerdict.DISAGREE


def compare_with_published(sample: SeedSample | None, published: float) -> list[Entry]:
    """Format the difference between our mean and a published value, and the verdict; empty without values."""
    if sample is None or (ours := sample.estimate) is None:
        return [missing(""), missing("")]
    low, high = (None if end is None else end - published for end in (ours.low, ours.high))
    excess = Estimate(ours.mean - published, low, high, ours.counts, ours.freedom)
    return [estimate(excess, 2, sign=True), compare(ours, published).entry]


def is_below(difference: Estimate | None) -> bool | None:
    """Return whether a difference is negative; None if undecided.

    It is negative if its whole interval is. It is not if the whole interval is positive, or within the margin around 0.
    """
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    if difference.high < 0:
        return True
    return False if difference.low > 0 or verdict(difference) is Verdict.EQUAL else None


def is_above(difference: Estimate | None) -> bool | None:
    """Return whether a difference is positive; None if undecided.

    It is positive if its whole interval is, and not if the whole interval is negative. There is no margin, so that the
    predicate also applies to quantities other than accuracy.
    """
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    return None if difference.low <= 0 <= difference.high else difference.low > 0


def is_not_below(difference: Estimate | None) -> bool | None:
    """Return whether a difference is positive or small; None if undecided.

    It is positive or small if its whole interval is above -margin. It is not if the whole interval is negative and
    reaches beyond the margin.
    """
    if difference is None or difference.low is None or difference.high is None or without_spread(difference):
        return None
    if difference.low >= -MARGIN_POINTS:
        return True
    return False if difference.high < 0 else None


def is_equal(difference: Estimate | None) -> bool | None:
    """Return whether a difference is within the margin of 0; None if undecided.

    It is within the margin if its whole interval is. It is not if the interval excludes 0 and reaches beyond it.
    """
    return {Verdict.EQUAL: True, Verdict.HIGHER: False, Verdict.LOWER: False}.get(verdict(difference))


#: By the name that claims use.
PREDICATES: dict[str, Callable[[Estimate | None], bool | None]] = {
    "below": is_below,
    "above": is_above,
    "not below": is_not_below,
}
