"""Test statements of the paper against what intervals can show."""

import pytest

from reproduce.presentation.content import Role
from reproduce.presentation.statements import ClaimVerdict, compare, holds
from reproduce.presentation.statistics import Estimate


def test_interval_predicates() -> None:
    """Below, not below and above are true, false or undecided according to the interval."""
    for low, high, below, not_below, above in (
        (-2.0, -1.0, True, False, False),
        (-0.4, -0.1, True, True, False),  # negative, and too small to matter: both hold
        (-0.3, 0.3, False, True, None),
        (-0.3, 2.0, None, True, None),
        (0.001, 0.002, False, True, True),  # any value above 0 counts, however small
        (-1.0, -1.0, None, None, None),  # equal values: their spread is not known
    ):
        interval = Estimate((low + high) / 2, low, high, (3,))
        found = tuple(holds(predicate, interval) for predicate in ("below", "not below", "above"))
        assert found == (below, not_below, above), interval
    for nothing in (None, Estimate(-5.0, None, None, (1,))):
        assert {holds(predicate, nothing) for predicate in ("below", "not below", "above", "equal")} == {None}


def test_equality_requires_a_narrow_interval() -> None:
    """Two values are equal only if the whole interval is within the margin."""
    assert holds("equal", Estimate(0.0, -0.3, 0.3, (3, 3))) is True
    assert holds("equal", Estimate(0.0, -2.0, 2.0, (3, 3))) is None
    assert holds("equal", Estimate(-0.6, -0.9, -0.3, (3, 3))) is False


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (Estimate(94.0, 93.0, 95.0, (3,)), ClaimVerdict.AGREE),  # the published value lies in the interval
        (Estimate(94.6, 94.5, 94.7, (3,)), ClaimVerdict.AGREE),  # the whole interval lies within the margin
        (Estimate(94.0, 93.5, 94.5, (3,)), ClaimVerdict.DISAGREE),
        (Estimate(94.9, None, None, (1,)), ClaimVerdict.OPEN),  # a single run
        (Estimate(94.9, 94.9, 94.9, (2,)), ClaimVerdict.OPEN),  # equal values: their spread is not known
    ],
)
def test_agreement_requires_interval_near_published_value(ours: Estimate, verdict: ClaimVerdict) -> None:
    """A value agrees if its interval contains the published one or is within the margin of it."""
    assert compare(ours, 94.9) is verdict


def test_only_a_disagreement_is_an_alert() -> None:
    """DISAGREE is the only verdict with tone ALERT, and every verdict has an explanation."""
    assert {verdict for verdict in ClaimVerdict if verdict.entry.role is Role.ALERT} == {ClaimVerdict.DISAGREE}
    assert all(verdict.meaning for verdict in ClaimVerdict)
