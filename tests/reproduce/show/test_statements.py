"""Statements of the paper, against what intervals can show."""

import pytest

from reproduce.published import Mark
from reproduce.show import statements
from reproduce.show.content import Finding, Tone
from reproduce.show.statements import Outcome, combine, is_above, is_below, is_not_below
from reproduce.show.statistics import Estimate


def test_claims_about_an_interval() -> None:
    for low, high, below, not_below, above in (
        (-2.0, -1.0, True, False, False),
        (-0.4, -0.1, True, True, False),  # negative, and too small to matter: both can be said of it
        (-0.3, 0.3, False, True, None),
        (-0.3, 2.0, None, True, None),
        (0.001, 0.002, False, True, True),  # above 0 is above 0, however small
        (-1.0, -1.0, None, None, None),  # equal values: their spread is not known
    ):
        interval = Estimate((low + high) / 2, low, high, (3,))
        assert (is_below(interval), is_not_below(interval), is_above(interval)) == (below, not_below, above), interval
    for nothing in (None, Estimate(-5.0, None, None, (1,))):
        assert is_below(nothing) is is_not_below(nothing) is is_above(nothing) is None


def test_a_statement_holds_if_all_its_claims_do_and_one_refuted_claim_refutes_it() -> None:
    assert combine([True, True]) is Outcome.AGREE
    assert combine([True, None]) is combine([None, None]) is Outcome.CANNOT_TELL
    assert combine([None, False]) is Outcome.DISAGREE


def test_a_statement_has_its_mark_and_an_unknown_one_is_refused() -> None:
    figure, table = statements.of("figure4"), statements.of("table4")
    assert (figure.mark, table.mark) == (Mark.PAPER, Mark.SECOND_HAND)
    assert table.quoted.endswith("” (second-hand)")
    assert figure.entry.mark is Mark.PAPER
    with pytest.raises(ValueError, match="no statement about 'table1'"):
        statements.of("table1")


@pytest.mark.parametrize(
    ("scale", "outcomes", "tone"),
    [
        ("paper", [Outcome.AGREE, Outcome.DISAGREE], Tone.ALERT),  # only at the paper's own scale it is alarming
        ("small", [Outcome.AGREE, Outcome.DISAGREE], Tone.PLAIN),
        ("paper", [Outcome.AGREE, Outcome.CANNOT_TELL], Tone.PLAIN),
        ("paper", [Outcome.CANNOT_TELL], Tone.MISSING),
    ],
)
def test_a_finding_is_alarming_where_it_is_against_the_paper(scale: str, outcomes: list[Outcome], tone: Tone) -> None:
    finding, *said = statements.answer("Figure 4", scale, statements.of("figure4"), "our data say so", outcomes)
    assert isinstance(finding, Finding)
    assert finding.tone is tone
    assert set(said) == set(outcomes)
    assert finding.text.startswith("Figure 4. Stated is “the gap")
