"""The data of Figures 5 and 6: means with their weights, structure of the networks, and what may be concluded."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import gradients
from reproduce.exhibits.gradients import DELAYED, METHOD, Study
from reproduce.grids import small
from reproduce.records import results
from reproduce.show.statements import Outcome
from reproduce.show.statistics import Estimate, estimate
from tests import fake_probes

CELLS = [cell for cell in gradients.cells("small") if isinstance(cell, GradientsCell)]


def of(model: str, k: int, seed: int) -> GradientsCell:
    return next(c for c in CELLS if (c.model, c.accumulation, c.seed) == (model, k, seed))


def value(pair: str, measure: str, stage: int, epoch: int) -> float:
    return {METHOD: 0.5, DELAYED: 0.4}.get(pair, 0.9) + 0.01 * stage + 0.1 * epoch


def study(root: Path) -> Study:
    return gradients.studies(results.read(root), "small")[0]


def test_stages_are_of_the_kinds_that_the_structure_makes_them() -> None:
    letters = {cell.model: "".join(kind.letter for kind in gradients.kinds(cell)) for cell in CELLS}
    assert letters == {"revnet18": "KREKEKEKEK", "chain8": "KRRRRRRREK"}


def test_means_are_weighed_by_the_micro_batches_behind_them() -> None:
    lines = [
        {"probes": 0, "measured": {}},
        {"probes": 1, "measured": {"a": [1.0, None, None]}},
        {"probes": 3, "measured": {"a": [5.0, 2.0, None]}},
    ]
    assert gradients.mean_of(lines) == {"a": [4.0, 2.0, None]}
    assert gradients.mean_of([]) == {}


def test_a_gain_is_positive_where_petra_is_closer() -> None:
    profile = {
        f"{METHOD}/cosine": [0.9, 0.5, None],
        f"{DELAYED}/cosine": [0.7, 0.6, 0.5],
        f"{METHOD}/relative_error": [0.2, 1.5, 1.0],
        f"{DELAYED}/relative_error": [0.5, 1.0, 1.0],
    }
    assert gradients.gain(profile, "cosine") == [pytest.approx(0.2), pytest.approx(-0.1), None]
    assert gradients.gain(profile, "relative_error") == pytest.approx([0.3, -0.5, 0.0])


def test_runs_are_gathered_by_seed_and_what_is_missing_is_told(tmp_path: Path) -> None:
    assert study(tmp_path).extent == "0 of 3 seeds; seed 0: not run; seed 1: not run; seed 2: not run"
    assert gradients.begun(results.read(tmp_path)) == {}
    fake_probes.measure(of("revnet18", 1, 0), tmp_path, value)
    fake_probes.measure(of("revnet18", 1, 1), tmp_path, value, epochs=2)
    found = study(tmp_path)
    assert found.extent == "2 of 3 seeds; seed 1: 2 of 3 epochs; seed 2: not run"
    profiles = found.profiles()
    assert profiles[0][f"{METHOD}/cosine"][3] == pytest.approx(0.5 + 0.03 + 0.2)
    assert profiles[1][f"{METHOD}/cosine"][3] == pytest.approx(0.5 + 0.03 + 0.15)
    assert list(gradients.begun(results.read(tmp_path))) == ["small"]
    fake_probes.measure(of("revnet18", 1, 2), tmp_path, value, epochs=0)  # begun, but nothing measured
    assert sorted(study(tmp_path).runs) == [0, 1]


def judged(*values: float) -> gradients.Check:
    return gradients.judge({0: estimate(values)})[0]


def test_a_claim_is_made_only_where_the_interval_excludes_0() -> None:
    assert judged(0.10, 0.11, 0.12).claim is Outcome.AGREE
    assert judged(-0.10, -0.11, -0.12).claim is Outcome.DISAGREE
    assert judged(0.10, -0.11, 0.12).claim is Outcome.CANNOT_TELL
    assert judged(0.10).claim is Outcome.CANNOT_TELL
    assert judged(0.0, 0.0, 0.0).claim is Outcome.CANNOT_TELL


def test_many_comparisons_are_judged_as_one_family() -> None:
    borderline = estimate([0.10, 0.16, 0.22])
    assert borderline.low is not None
    assert borderline.low > 0
    assert gradients.judge({0: borderline})[0].stands
    family: dict[int, Estimate] = dict.fromkeys(range(9), borderline)
    checks = gradients.judge(family)
    assert {check.claim for check in checks.values()} == {Outcome.AGREE}
    assert not any(check.stands for check in checks.values())
    assert gradients.tally(list(checks.values())) == "agree 9, 0 of them after Holm's correction"


def check(claim: Outcome, *, stands: bool = True) -> gradients.Check:
    return gradients.Check(estimate([0.1, 0.2]), claim, stands and claim is not Outcome.CANNOT_TELL)


@pytest.mark.parametrize(
    ("checks", "word"),
    [
        ([], "cannot tell"),
        ([check(Outcome.CANNOT_TELL)], "cannot tell"),
        ([check(Outcome.AGREE), check(Outcome.CANNOT_TELL)], "agree"),
        ([check(Outcome.AGREE), check(Outcome.DISAGREE, stands=False)], "agree"),
        ([check(Outcome.AGREE, stands=False)] * 3, "cannot tell"),
        ([check(Outcome.DISAGREE), check(Outcome.CANNOT_TELL)], "disagree"),
        ([check(Outcome.AGREE), check(Outcome.DISAGREE)], "mixed"),
    ],
)
def test_only_claims_that_stand_make_the_word(checks: list[gradients.Check], word: str) -> None:
    assert gradients.verdict(checks) == word


def test_a_mean_gain_leaves_out_the_head_and_what_is_not_defined() -> None:
    profile = {f"{METHOD}/cosine": [0.9, None, 0.5, 1.0], f"{DELAYED}/cosine": [0.7, 0.6, 0.4, 0.0]}
    assert gradients.mean_gain(profile, "cosine") == pytest.approx(0.15)
    assert gradients.mean_gain({f"{METHOD}/cosine": [1.0], f"{DELAYED}/cosine": [1.0]}, "cosine") is None


def test_a_record_with_means_only_has_a_stretch_an_epoch(tmp_path: Path) -> None:
    fake_probes.measure(of("revnet18", 1, 0), tmp_path, value, singly=True, probes=31)
    fake_probes.measure(of("revnet18", 1, 1), tmp_path, value, epochs=2)
    found = gradients.stretches(study(tmp_path), 24)
    assert [(s.begin, s.end, sorted(s.profiles)) for s in found] == [(0, 1, [0, 1]), (1, 2, [0, 1]), (2, 3, [0])]
    assert found[1].profiles[0][f"{METHOD}/cosine"][0] == pytest.approx(0.7)


@pytest.mark.parametrize(("probes", "count"), [(31, 24), (8, 8), (1, 1)])
def test_micro_batches_one_by_one_make_finer_stretches(probes: int, count: int, tmp_path: Path) -> None:
    fake_probes.measure(of("revnet18", 1, 0), tmp_path, value, singly=True, probes=probes)
    found = gradients.stretches(study(tmp_path), 24)
    assert len(found) == count
    assert found[0].begin == 0
    assert found[-1].end == small.settings()["epochs"]
    values = [stretch.profiles[0][f"{METHOD}/cosine"][0] for stretch in found]
    assert values == sorted(values)  # type: ignore[type-var]  # none of these is None
    assert len(set(values)) == count
