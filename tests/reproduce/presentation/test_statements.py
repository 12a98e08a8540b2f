"""Test statements of the paper against what intervals can show."""

import pytest

from reproduce.presentation.content import Role
from reproduce.presentation.statements import ClaimVerdict, compare, is_above, is_below, is_equal, is_not_below
from reproduce.presentation.statistics import Estimate


def test_claims_about_an_interval() -> None:
    for low, high, below, not_below, above in (
        (-2.0, -1.0, True, False, False),
        (-0.4, -0.1, True, True, False),  # negative, and too small to matter: both hold
        (-0.3, 0.3, False, True, None),
        (-0.3, 2.0, None, True, None),
        (0.001, 0.002, False, True, True),  # any value above 0 counts, however small
        (-1.0, -1.0, None, None, None),  # equal values: their spread is not known
    ):
        interval = Estimate((low + high) / 2, low, high, (3,))
        assert (is_below(interval), is_not_below(interval), is_above(interval)) == (below, not_below, above), interval
    for nothing in (None, Estimate(-5.0, None, None, (1,))):
        assert is_below(nothing) is is_not_below(nothing) is is_above(nothing) is None


def test_nothing_is_equal_because_no_difference_was_found() -> None:
    assert is_equal(Estimate(0.0, -0.3, 0.3, (3, 3))) is True
    assert is_equal(Estimate(0.0, -2.0, 2.0, (3, 3))) is None
    assert is_equal(Estimate(-0.6, -0.9, -0.3, (3, 3))) is False


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
def test_agreement_with_a_published_value_is_earned(ours: Estimate, verdict: ClaimVerdict) -> None:
    assert compare(ours, 94.9) is verdict


def test_only_a_disagreement_at_the_papers_size_is_an_alert() -> None:
    assert {verdict for verdict in ClaimVerdict if verdict.entry.role is Role.ALERT} == {ClaimVerdict.DISAGREE}
    assert all(verdict.meaning for verdict in ClaimVerdict)
