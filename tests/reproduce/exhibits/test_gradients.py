"""What Figures 5 and 6 share: structure of the networks, gains, and what may be concluded from them."""

from collections.abc import Sequence

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import gradients
from reproduce.exhibits.gradients import DELAYED, METHOD
from reproduce.grids.plans import gradients as plan
from reproduce.records.frames import DataFrame
from reproduce.show.compare import Sample, judge
from reproduce.show.statements import Outcome
from reproduce.show.statistics import Judgement, Verdict, estimate


def test_stages_are_of_the_kinds_that_the_structure_makes_them() -> None:
    cells = [cell for cell in plan.cells("small") if isinstance(cell, GradientsCell)]
    assert {cell.model: gradients.kinds(cell) for cell in cells} == {"revnet18": "KREKEKEKEK", "chain8": "KRRRRRRREK"}


def profile(ours: Sequence[float | None], delayed: Sequence[float | None], measure: str) -> DataFrame:
    """The last stage is the head."""
    rows = [
        {"seed": 0, "stage": stage, "head": stage == len(ours) - 1, "pair": pair, "measure": measure, "value": value}
        for pair, values in ((METHOD, ours), (DELAYED, delayed))
        for stage, value in enumerate(values)
    ]
    return DataFrame(rows).astype({"value": float})


def test_a_gain_is_positive_where_petra_is_closer_and_the_head_has_none() -> None:
    cosine = gradients.gains(profile([0.9, 0.5, None, 1.0], [0.7, 0.6, 0.5, 1.0], "cosine"))
    assert list(cosine["value"]) == pytest.approx([0.2, -0.1, float("nan")], nan_ok=True)
    error = gradients.gains(profile([0.2, 1.5, 1.0, 0.0], [0.5, 1.0, 1.0, 0.0], "relative_error"))
    assert list(error["value"]) == pytest.approx([0.3, -0.5, 0.0])
    assert gradients.gains(profile([1.1, 1.0], [1.0, 1.0], "norm_ratio")).empty
    assert list(gradients.over_stages(cosine)["value"]) == pytest.approx([0.05])  # of what is defined


def test_only_claims_that_survive_the_correction_of_their_family_make_the_word() -> None:
    borderline = Sample({0: 0.10, 1: 0.16, 2: 0.22})
    (alone,) = judge({0: borderline}).values()
    family = list(judge(dict.fromkeys(range(9), borderline)).values())
    assert (gradients.word([alone]), gradients.claim_entry(alone).text) == ("agree", "agree")
    assert {gradients.claim(judgement) for judgement in family} == {Outcome.AGREE}
    assert {gradients.claim_entry(judgement).text for judgement in family} == {"agree †"}
    assert gradients.word(family) == "cannot tell"


def judged(sign: int, corrected: float = 0.01) -> Judgement:
    return Judgement(estimate([0.10 * sign, 0.11 * sign, 0.12 * sign]), Verdict.AGREE, corrected)


@pytest.mark.parametrize(
    ("judgements", "word"),
    [
        ([], "cannot tell"),
        ([judged(1)], "agree"),
        ([judged(1), judged(-1, corrected=0.2)], "agree"),
        ([judged(1, corrected=0.2)] * 3, "cannot tell"),
        ([judged(-1)], "disagree"),
        ([judged(1), judged(-1)], "mixed"),
    ],
)
def test_the_word_of_many_claims(judgements: list[Judgement], word: str) -> None:
    assert gradients.word(judgements) == word


def test_one_seed_says_that_it_has_no_interval() -> None:
    (alone,) = judge({0: Sample({0: 0.3})}).values()
    entry = gradients.claim_entry(alone)
    assert (entry.text, entry.hint) == ("cannot tell", "one seed: no interval")
