"""Recompute the primary comparisons from the records with json, numpy and scipy, without code of the suite."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from petra_core import methods
from reproduce.cells.kinds import TrainedCell, from_dict
from reproduce.exhibits import primary
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import length, staleness
from reproduce.presentation.compare import SeedSample
from reproduce.presentation.statistics import Verdict
from reproduce.records.frames import SPREAD, Frames, settings_key
from reproduce.records.lost_commits import LOST
from reproduce.records.results import read
from tests import fake_records, sections

HERE = Path(__file__)
REPOSITORY = HERE.parents[3]
DECLARED = REPOSITORY / "reproduce" / "exhibits" / "primary.json"
RECORDS = REPOSITORY / "reports" / "records"
NOT_A_SETTING = ("seed", "loader")
#: Settings that were added after the first records, with the values that the first records imply.
LATER = {
    "coupling": "own",
    "messages": "float32",
    "replicas": 1,
    "optimizer": "sgd",
    "stage_replicas": [],
    "forward_weights": "current",
    "correction": "none",
    "correction_value": 0.0,
    "timing": "lockstep",
    "stages": [],
    "held_out": 0,
}


def finished(study: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every finished record of the study's scale, data set, network and length, with any other settings."""
    same = ("scale", "dataset", "model", "width", "epochs", "precision")
    folder = RECORDS / study["scale"]
    codes = {line["id"]: line.get("code") for line in lines_of(folder / "provenance.jsonl")}
    found = []
    for file in sorted(folder.glob("training-*.jsonl")):
        records = defaultdict(list)
        for line in lines_of(file):
            records[line["id"], line["run"]].append(line)
        for first, *epochs, last in records.values():
            cell = LATER | first["cell"]
            if cell.get("epochs") is None or any(cell.get(name) != study[name] for name in same):
                continue
            assert (first["t"], last["t"]) == ("cell", "result")
            if len(epochs) < cell["epochs"] or epochs[-1]["test_accuracy"] <= 20:
                continue
            averaged = min(10, cell["epochs"] - max(cell["drops"]))
            accuracy = np.mean([epoch["test_accuracy"] for epoch in epochs[-averaged:]])
            commits = {codes[key]["commit"] for key in first["codes"]}
            found.append({"cell": cell, "accuracy": float(accuracy), "commits": commits})
    return found


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dict.fromkeys(file.read_text().splitlines())]


def settings(cell: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in cell.items() if name not in NOT_A_SETTING}, sort_keys=True)


def recomputed() -> list[dict[str, Any] | None]:
    """Return mean, half-width, p and number of runs of each comparison; None if a side has no run.

    By the report's rule a side with one run gives no interval, and its p is 1.
    """
    declared = json.loads(DECLARED.read_text())
    made: list[dict[str, Any] | None] = []
    for comparison in declared["comparisons"]:
        study = declared["studies"][comparison["study"]]
        records = finished(study)
        by_settings = defaultdict(list)
        for record in records:
            by_settings[settings(record["cell"])].append(record["accuracy"])
        groups = [values for values in by_settings.values() if len(values) > 1]
        sides = []
        for side in ("first", "second"):
            wanted = LATER | study | comparison[side]
            runs = [r for r in records if {k: v for k, v in r["cell"].items() if k not in NOT_A_SETTING} == wanted]
            seeds = declared["families"][comparison["family"]]["seeds"]
            runs = [r for r in runs if seeds is None or r["cell"]["seed"] in seeds]
            sides.append([r["accuracy"] for r in runs if not r["commits"] & LOST.keys()])
        if not all(sides):
            made.append(None)
            continue
        ours, theirs = sides
        mean = np.mean(ours) - np.mean(theirs)
        half: float | None
        if min(len(ours), len(theirs)) == 1:
            half, p = None, 1.0
        elif stats.bartlett(*groups).pvalue >= 0.05:
            freedom = sum(len(values) - 1 for values in groups)
            variance = sum((len(values) - 1) * np.var(values, ddof=1) for values in groups) / freedom
            error = math.sqrt(variance * (1 / len(ours) + 1 / len(theirs)))
            half, p = stats.t.ppf(0.975, freedom) * error, 2 * stats.t.sf(abs(mean) / error, freedom)
        else:
            welch = stats.ttest_ind(ours, theirs, equal_var=False)
            half, p = mean - welch.confidence_interval(0.95).low, welch.pvalue
        made.append({"mean": mean, "half": half, "p": p, "ours": len(ours), "theirs": len(theirs)})
    return made


@pytest.mark.slow
def test_independent_script_reproduces_primary_comparisons() -> None:
    """Independent code computes the same differences, intervals and corrected p from the records."""
    ours = primary.primaries(Frames(read(RECORDS)))
    theirs = recomputed()
    assert len(ours) == len(theirs)
    p = np.array([1.0 if comparison is None else comparison["p"] for comparison in theirs])
    families = np.array([comparison["family"] for comparison in json.loads(DECLARED.read_text())["comparisons"]])
    corrected = np.zeros(len(p))
    for family in set(families):
        order = np.flatnonzero(families == family)[np.argsort(p[families == family])]
        scaled = [min(1.0, (len(order) - rank) * p[at]) for rank, at in enumerate(order)]
        corrected[order] = np.maximum.accumulate(scaled)
    for comparison, check, holm in zip(ours, theirs, corrected, strict=True):
        estimate = comparison.accuracy.estimate
        assert comparison.corrected == pytest.approx(holm, rel=1e-6), comparison.title
        if check is None:
            assert estimate is None, comparison.title
            continue
        assert estimate is not None, comparison.title
        assert estimate.counts == (check["ours"], check["theirs"]), comparison.title
        assert estimate.mean == pytest.approx(check["mean"], rel=1e-6), comparison.title
        assert estimate.half_width == (check["half"] and pytest.approx(check["half"], rel=1e-6)), comparison.title
    assert sum(comparison.accuracy.estimate is not None for comparison in ours) >= 2


def test_families_have_three_to_five_comparisons() -> None:
    """Every family has three to five comparisons, and every declared study is used."""
    declared = json.loads(DECLARED.read_text())
    sizes = Counter(comparison["family"] for comparison in declared["comparisons"])
    assert sizes.keys() == declared["families"].keys()
    assert all(3 <= size <= 5 for size in sizes.values())
    assert {comparison["study"] for comparison in declared["comparisons"]} == declared["studies"].keys()
    assert primary.read_declaration() == declared


def test_outcomes_share_the_spread_of_their_study() -> None:
    """The intervals of both outcomes of every family use the spread of the study."""
    families = primary.read_declaration()["families"].values()
    assert {primary.OUTCOME, *(family["loss"] for family in families)} <= set(SPREAD)


def test_difference_that_is_not_significant_after_the_correction_is_open() -> None:
    difference = SeedSample({0: 80.0, 1: 80.2, 2: 80.4}) - SeedSample({0: 79.0, 1: 79.2, 2: 79.4})
    assert difference.verdict is Verdict.HIGHER
    comparison = primary.Primary("family", "title", "question", 27, "setting", *[difference] * 3, corrected=0.06)
    assert comparison.verdict is Verdict.OPEN
    assert replace(comparison, corrected=0.04).verdict is Verdict.HIGHER


def test_compared_cells_are_planned_with_the_family_seeds() -> None:
    """Both sides of every comparison are planned with the seeds of its family."""
    declared = json.loads(DECLARED.read_text())
    planned = {(settings_key(cell), cell.seed) for cell in grid_of("small") if isinstance(cell, TrainedCell)}
    for comparison in declared["comparisons"]:
        seeds = declared["families"][comparison["family"]]["seeds"]
        for side in ("first", "second"):
            values = declared["studies"][comparison["study"]] | comparison[side]
            cells = [from_dict({**values, "seed": seed, "loader": "memory"}) for seed in seeds or (0, 1, 2)]
            assert {(settings_key(cell), cell.seed) for cell in cells if isinstance(cell, TrainedCell)} <= planned


@sections.situation(primary.EXHIBIT)
def one_comparison_of_each_family_has_runs(root: Path) -> None:
    """Comparisons without runs count in the correction. Runs at lost commits and exploratory seeds are left out.

    The second comparison is of runs on different devices, of which two pairs are on the same one. The third has two of
    six declared seeds.
    """
    for seed in range(3):
        petra, exact = (length.plan_cell("small", m, 1, 27, seed) for m in (methods.PETRA, methods.BACKPROPAGATION))
        lost = {"commit": next(iter(LOST))} if seed == 2 else {}
        fake_records.train(petra, root, 84.0 + 0.1 * seed, code=fake_records.CLEAN | lost)
        fake_records.train(exact, root, 86.0 + 0.1 * seed)
    for seed in range(6):  # seeds 0 to 2 suggested the hypothesis
        for timing, accuracy in (("lockstep", 60.0), ("1f1b", 66.0 if seed >= 3 else 90.0)):
            cell = recipes.cell("small", "revnet18", methods.PETRA, 1, seed, timing=timing)
            device = "A GPU" if (seed, timing) == (5, "1f1b") else "cpu"
            environment = {**fake_records.ENVIRONMENT, "device": device}
            fake_records.train(cell, root, accuracy + 0.1 * seed, environment=environment)
    for cell in staleness.longer():
        if (cell.model, cell.timing, cell.stages, cell.method) == ("revnet18", "1f1b", (), "PETRA") and cell.seed < 2:
            fake_records.train(cell, root, 85.0 + 0.1 * cell.seed)
