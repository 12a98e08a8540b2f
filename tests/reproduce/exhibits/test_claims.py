"""Test that claims are complete, refer to existing cells, and get their verdicts only from runs."""

import json
from dataclasses import replace

import pytest

from petra_core import methods
from reproduce import published
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.exhibits._exhibit import all_exhibits
from reproduce.exhibits.claims import Judged, judge, judge_claim
from reproduce.grids.plans import PLANS
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.frames import Frames
from reproduce.records.gradients import kinds
from reproduce.records.record import Run, Status

CLAIMS = published.claims()


@pytest.fixture(scope="module")
def judged(golden_frames: Frames) -> list[Judged]:
    return judge(golden_frames)


def recorded(frames: Frames) -> list[Run[Cell]]:
    return [run for run in frames.results.runs if run.state.status is not Status.NOT_RUN]


def test_claims_are_sentences_about_exhibits() -> None:
    """Every claim has a unique key, is a sentence, refers to an exhibit and contains no verdict."""
    assert 25 <= sum(claim.paper == "PETRA" for claim in CLAIMS) <= 40
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.exhibit for claim in CLAIMS} <= {exhibit.key for exhibit in all_exhibits()}
    for claim in CLAIMS:
        assert claim.sentence.endswith((".", ").")), claim.key
        assert "verdict" not in json.dumps([claim.predicate, *claim.tests]), "a verdict is an output"
        assert [test["scale"] for test in claim.tests] == sorted((t["scale"] for t in claim.tests), key=_largest_first)


def _largest_first(scale: str) -> int:
    return ["paper", "narrow", "small", "smoke"].index(scale)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.key for claim in CLAIMS])
def test_cells_of_every_claim_are_planned(claim: published.Claim) -> None:
    """Require a plan with the cells of every claim, which would otherwise stay unknown without end."""
    for test in claim.tests:
        if "plan" not in test:
            continue
        planned = [cell.to_dict() for cell in PLANS[test["plan"]](test["scale"])]
        for cell in planned:
            cell["k"] = cell.get("accumulation")
        for term in test.get("terms", [{"where": {}}]):
            wanted = test["cells"] | term["where"]
            assert [
                cell for cell in planned if all(_is(cell.get(name), judgement) for name, judgement in wanted.items())
            ], wanted


def _is(value: object, wanted: object) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted


def test_published_values_of_claims_equal_the_tables() -> None:
    """The published values in the claims are those of the published tables."""
    values = {claim.key: claim.predicate.get("value") for claim in CLAIMS}
    reached = {
        (methods.by_name(row["method"]).name, row["model"], row["dataset"]): row.number("top1_percent")
        for row in published.read("table2_accuracy")
    }
    for (method, model, dataset), accuracy in reached.items():
        if method == methods.PETRA.name:
            gap = accuracy - reached[methods.BACKPROPAGATION.name, model, dataset]
            assert values[f"table2-{dataset}-{model}"] == pytest.approx(gap, abs=1e-9)
    rows = published.read("table3_memory")
    memory = [claim.predicate["value"] for claim in CLAIMS if claim.exhibit == "table3"]
    assert memory == [*(row.number("memory_gb") for row in rows), rows[-1].number("saving_percent")]
    speeds = [row.number("speedup_over_reversible_backpropagation") for row in published.read("table5_speed")]
    assert [claim.predicate["value"] for claim in CLAIMS if claim.exhibit == "table5"] == speeds


def test_small_scale_reconstruction_claims_use_deep_networks() -> None:
    """Below scale paper, reconstruction claims use networks with more than one reconstructed stage."""
    about = {"table4", "figure5", "figure6"}
    for claim in CLAIMS:
        for test in claim.tests if claim.exhibit in about else ():
            cells = [cell for cell in PLANS[test["plan"]](test["scale"]) if isinstance(cell, TrainedCell)]
            cells = [cell for cell in cells if cell.model == test["cells"]["model"]]
            least = min(kinds(cell).count("R") for cell in cells[:1])
            assert least > 1 or (test["scale"] == "paper" and claim.exhibit != "table4"), claim.key


def test_verdicts_are_unknown_without_their_cells(golden_frames: Frames, judged: list[Judged]) -> None:
    """Remove the runs that are named as evidence, so that no verdict remains."""
    known = [judgement for judgement in judged if judgement.verdict is not ClaimVerdict.UNKNOWN]
    assert len(known) >= 15
    used = {cell for judgement in known for evidence in judgement.evidence for cell in evidence.cells}
    runs = recorded(golden_frames)
    rest = tuple(run for run in runs if run.cell.name not in used)
    assert len(rest) < len(runs)
    without = judge(Frames(replace(golden_frames.results, runs=rest, benchmarks=())))
    assert {judgement.verdict for judgement in without} == {ClaimVerdict.UNKNOWN}
    assert all(judgement.found == "" for judgement in without)


def test_evidence_names_recorded_cells(golden_frames: Frames, judged: list[Judged]) -> None:
    """All evidence names existing cells or benchmarks."""
    names = {run.cell.name for run in recorded(golden_frames)}
    for evidence in (evidence for judgement in judged for evidence in judgement.evidence):
        assert evidence.cells
        assert all(cell in names or cell.startswith("benchmarks/") for cell in evidence.cells)


def test_cpus_do_not_decide_the_claim_about_pareprop(golden_frames: Frames) -> None:
    """PaReprop was made for GPUs: the same measurements refute the claim only if a GPU made them."""
    results = golden_frames.results
    measured = next(record for record in results.benchmarks if record.name == "pareprop")
    on_gpu = replace(measured, environment={**measured.environment, "device": "NVIDIA H200"})
    claim = next(claim for claim in CLAIMS if claim.exhibit == "pareprop")
    verdicts = [
        judge_claim(claim, Frames(replace(results, benchmarks=(record,)))).verdict for record in (measured, on_gpu)
    ]
    assert verdicts == [ClaimVerdict.OPEN, ClaimVerdict.NOT_SO]
