"""Test corrections for delay: the planned cells, the comparisons, and the choice of learning rates by seed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.cells.kinds import ReconstructionCell, TrainedCell
from reproduce.exhibits import corrections
from reproduce.grids import recipes, scales
from reproduce.grids.plans import corrections as plan
from reproduce.presentation.content import MINUS, Entry, Section, Table
from reproduce.records.record import DEFAULT_ROOT, Record, Status
from tests import fake_probes, fake_records, sections

RATES_OF = {mitigation.title: mitigation.rates for mitigation in plan.MITIGATIONS}
POINTS = {"nothing": 40.0, "predicted weights": 44.0, "gap-aware": 41.0}


def trained() -> Iterator[tuple[plan.Trial, TrainedCell]]:
    for trial in plan.trials("small"):
        assert isinstance(trial.cell, TrainedCell)
        yield trial, trial.cell


def write(root: Path) -> None:
    """Write PETRA on RevNet-18 with k = 1: plain, and with corrections, one of them better at a quarter of the rate."""
    for trial, cell in trained():
        if (cell.model, cell.accumulation) != ("revnet18", 1):
            continue
        if cell.epochs > 3:
            if cell.epochs == 9 and cell.seed < 2:
                reached = {"BACKPROPAGATION": 70.0, "PETRA": 66.0}[cell.method] + 3.0 * (
                    trial.mitigation is not plan.NOTHING
                )
                fake_records.train(cell, root, reached + cell.seed)
        elif cell.method == "BACKPROPAGATION":
            best = {"nothing": 50.0, "NAdam (momentum 0.99)": 51.0}[trial.mitigation.title]
            best_rate = (
                plan.CHOSEN[cell.model, 1, cell.method, "NAdam (momentum 0.99)"]
                if "NAdam" in trial.mitigation.title
                else 1.0
            )
            fake_records.train(cell, root, best + cell.seed - 2 * (trial.rate != best_rate))
        elif cell.method == "PETRA" and trial.mitigation.title in POINTS:
            lower = 2.0 if trial.rate < 1 and trial.mitigation.title == "gap-aware" else 0.0
            spread = 1.2 if trial.mitigation.title == "predicted weights" else 1.1
            reached = (
                POINTS[trial.mitigation.title] + spread * cell.seed + lower - 5 * (trial.rate > 1) - (trial.rate < 1)
            )
            size = 2_000_000 if trial.mitigation.title == "gap-aware" else 1_000_000
            fake_records.train(cell, root, reached, extra={"peak_bytes": size})


def rows(section: Section, number: int, method: str = "PETRA") -> dict[str, dict[str, Entry]]:
    """Return the rows of a method on RevNet-18 with k = 1 in a table of the section, by correction."""
    single = [block for block in section.blocks if isinstance(block, Table)][number]
    heads = [f"{column.group} {column.name}".strip() for column in single.columns]
    entries_of_rows = [dict(zip(heads, row, strict=True)) for row in single.rows]
    chosen = ("RevNet-18, width 8", "1", method)
    return {
        row["mitigation"].text: row
        for row in entries_of_rows
        if tuple(row[h].text for h in ("network", "k", "method")) == chosen
    }


def test_trial_differs_from_recipe_in_mitigation_and_rate() -> None:
    for scale in scales.SCALES:
        cells = plan.cells(scale)
        assert len(set(cells)) == len(cells)
    mitigations = {"forward_weights", "correction", "correction_value", "optimizer", "momentum", "learning_rate"}
    for trial, cell in trained():
        method = methods.by_name(cell.method)
        longer = {"epochs": cell.epochs, "drops": (2 * cell.epochs // 3,)}
        recipe = recipes.cell("small", cell.model, method, cell.accumulation, cell.seed, **longer).to_dict()
        differing = {name for name, value in recipe.items() if cell.to_dict()[name] != value} - {"kind"}
        changed = set(trial.mitigation.changes) | ({"learning_rate"} if trial.rate != 1 else set())
        assert differing <= mitigations
        assert differing <= changed | {"correction_value", "learning_rate"}
        assert isinstance(cell, ReconstructionCell) == (
            (cell.model, cell.method, cell.accumulation, trial.rate) == ("chain16", "PETRA", 1, 1.0)
        )


def test_mitigations_have_all_seeds_and_rates_one() -> None:
    for network in ("revnet18", "chain16"):
        short = [
            (trial.mitigation, trial.cell, trial.rate)
            for trial in plan.trials("small")
            if isinstance(trial.cell, TrainedCell) and (trial.cell.epochs, trial.cell.model) == (3, network)
        ]
        for k in (1, 4):
            of_petra = [
                (mitigation, cell, r)
                for mitigation, cell, r in short
                if (cell.method, cell.accumulation) == ("PETRA", k)
            ]
            for mitigation in plan.MITIGATIONS:
                trained = [(rate, cell.seed) for tried, cell, rate in of_petra if tried == mitigation]
                chosen = plan.CHOSEN.get((network, k, "PETRA", mitigation.title))
                others = [(rate, seed) for rate in (1.0, chosen) if rate for seed in (1, 2)]
                assert sorted(trained) == sorted([*((r, corrections.CHOICE) for r in mitigation.rates), *others])


def test_chosen_rates_are_the_best_of_the_records() -> None:
    """The rates in `plan.CHOSEN` are those with the best accuracy in the records."""
    tried: dict[tuple[str, int, str, str], dict[float, float]] = {}
    for trial, cell in trained():
        state = Record.for_cell(cell, DEFAULT_ROOT).state()
        if (cell.epochs, cell.seed) == (3, corrections.CHOICE) and state.status is Status.DONE:
            place = cell.model, cell.accumulation, cell.method, trial.mitigation.title
            tried.setdefault(place, {})[trial.rate] = state.result["test_accuracy"]
    whole = {place: rates for place, rates in tried.items() if len(rates) == len(RATES_OF[place[-1]])}
    best = {place: max(rates, key=lambda rate, rates=rates: rates[rate]) for place, rates in whole.items()}
    assert {place: rate for place, rate in best.items() if rate != 1} == plan.CHOSEN


def test_corrections_tables_show_gains_rates_and_bytes(tmp_path: Path) -> None:
    """The tables contain gains over both references, chosen rates, held bytes, and the longer trainings."""
    write(tmp_path)
    section = sections.made(corrections.EXHIBIT, tmp_path)
    by_mitigation, at_best = rows(section, 0), rows(section, 1)
    ahead, gap = by_mitigation["predicted weights"], by_mitigation["gap-aware"]
    assert by_mitigation["nothing"]["− the method without a mitigation points"].text == "reference"
    assert ahead["− the method without a mitigation points"].raw == pytest.approx(4.1)
    assert ahead["− backpropagation points"].raw == pytest.approx(-5.8)
    assert gap["held, all stages relative"].text == "2.00"
    ahead, gap = at_best["predicted weights"], at_best["gap-aware"]
    assert (ahead["rate§"].text, ahead["seed 0, %§"].text) == ("1", "44.00")
    assert ahead["other seeds, %"].raw == pytest.approx(45.8)
    assert ahead["− backpropagation points"].raw == pytest.approx(-5.7)
    assert ahead["− the method without a mitigation points"].raw == pytest.approx(4.15)
    assert (gap["rate§"].text, gap["seed 0, %§"].text) == ("0.25", "42.00")
    assert gap["other seeds, %"].text == "not run"  # until the choice is planned
    by_nadam = rows(section, 1, "Backpropagation")["NAdam (momentum 0.99)"]
    assert by_nadam["− backpropagation points"].raw == pytest.approx(1.0)
    assert by_nadam["− the method without a mitigation points"].text == ""
    assert rows(section, 1, "Backpropagation")["nothing"]["− backpropagation points"].text == "reference"
    assert by_mitigation["spike compensation"]["accuracy, %"].text == "not run"
    assert section.sentence.startswith(
        "After 3 epochs, 1 of 2 trials of 2 mitigations wins over PETRA without a mitigation (predicted weights), "
        "and 0 lose (not corrected for their number); after 9 epochs the gain "
    )
    assert [finding.text.partition(" (RevNet")[0] for finding in section.findings] == [
        f"Corrections {where}: of {quantity} under PETRA with an interval these {which}"
        for where, quantity in (("at the recipe's rate", "2 trials"), ("at best rates", "1 trial"))
        for which in ("win points: predicted weights", "lose points: none.")
    ] + [
        *(
            f"Corrections for longer: of 3 trials under PETRA with an interval these {which}"
            for which in ("win points: predicted weights", "lose points: none.")
        ),
        "Corrections for longer: PETRA − backpropagation by the same optimizer: NAdam (momentum 0.99)",
    ]
    longer = [block for block in section.blocks if isinstance(block, Table)][2]
    texts = [[entry.text for entry in row] for row in longer.rows]
    assert texts[0][:2] == ["nothing", "9"]
    assert texts[0][2].startswith("66.50")
    assert texts[0][2].endswith("(2 of 3)")
    assert texts[1][0] == "predicted weights"
    assert longer.rows[1][-2].raw == pytest.approx(3.0)
    assert longer.rows[3][5].raw == pytest.approx(-4.0), "NAdam's, less backpropagation by NAdam"
    assert texts[5][:3] == ["predicted weights", "27", "not run"]


def test_best_rate_shows_lead_bytes_and_star_if_incomplete(tmp_path: Path) -> None:
    """The best rate has its lead and bytes, and a star while other rates have not run."""
    reached = {"nothing": {1.0: 40.0, 0.25: 38.5, 4.0: 35.0}, "gap-aware": {1.0: 41.0, 0.25: 42.5}}
    for trial, cell in trained():
        place = cell.model, cell.accumulation, cell.method, cell.epochs, cell.seed
        accuracy = reached.get(trial.mitigation.title, {}).get(trial.rate)
        if place == ("revnet18", 1, "PETRA", 3, 0) and accuracy is not None:
            size = 3_000_000 if trial.mitigation.title == "gap-aware" and trial.rate < 1 else 1_000_000
            fake_records.train(cell, tmp_path, accuracy, extra={"peak_bytes": size})
        elif place == ("revnet18", 1, "PETRA", 3, 0) and trial.mitigation.title == "rate by delay":
            if trial.rate > 1:  # a rate that has diverged leaves nothing to wait for
                fake_records.begin(cell, tmp_path).fail("diverged", "the loss is nan")
            else:
                fake_records.train(cell, tmp_path, 39.0 + trial.rate)
    at_best = rows(sections.made(corrections.EXHIBIT, tmp_path), 1)
    rendered = {
        mitigation: [at_best[mitigation][head].text for head in ("rate§", "lead", "held, relative")]
        for mitigation in reached
    }
    assert at_best["rate by delay"]["rate§"].text == "1"
    assert rendered == {"nothing": ["1", "1.50", "1.00"], "gap-aware": ["0.25*", "1.50", "3.00"]}


def test_findings_cover_petra_only_and_need_two_runs(tmp_path: Path) -> None:
    """Report no correction under DSP, and report the gain after the longest training last."""
    gains = {"nothing": 0.0, "predicted weights": 1.0, "gap-aware": 9.0}
    left = {9: 0.6, 27: -0.2}
    for trial, cell in trained():
        if cell.epochs in left and (cell.method, cell.seed) == ("PETRA", 0) and trial.mitigation.title in gains:
            fake_records.train(cell, tmp_path, 80.0 + left[cell.epochs] * gains[trial.mitigation.title])
        if (cell.model, cell.accumulation, cell.epochs, trial.rate) != ("revnet18", 1, 3, 1.0):
            continue
        if cell.method == "BACKPROPAGATION" and trial.mitigation is plan.NOTHING:
            fake_records.train(cell, tmp_path, 50.0 + 0.01 * cell.seed)
        elif trial.mitigation.title in gains and cell.seed <= (trial.mitigation.title != "gap-aware"):
            if cell.method == "PETRA":
                fake_records.train(cell, tmp_path, 40.0 + gains[trial.mitigation.title] + 0.01 * cell.seed)
            elif cell.method == "DSP":
                fake_records.train(cell, tmp_path, 41.0 + 2 * gains[trial.mitigation.title] + 0.01 * cell.seed)
    section = sections.made(corrections.EXHIBIT, tmp_path)
    assert section.sentence == (
        "After 3 epochs, 1 of 2 trials of 2 mitigations wins over PETRA without a mitigation (predicted weights), "
        "and 0 lose (not corrected for their number); after 27 epochs the gain "
        f"is {MINUS}0.2 points (one run each) with predicted weights."
    )
    assert section.findings[0].text.startswith(
        "Corrections at the recipe's rate: of 1 trial under PETRA with an interval these win points: predicted"
    )
    assert "gap-aware" not in "".join(finding.text for finding in section.findings)


def test_reconstruction_error_is_that_of_training_at_bottom(tmp_path: Path) -> None:
    """The reported reconstruction error is that of the training at the lowest stage."""

    def error(cause: str, quantity: str, stage: int, epoch: int) -> float:
        return {"rounding": 1e-7, "rounding_bfloat16": 1e-3, "training": 0.2}[cause] / max(stage, 1)

    cell = next(
        t.cell for t in plan.trials("small") if isinstance(t.cell, ReconstructionCell) and t.mitigation is plan.NOTHING
    )
    fake_probes.measure(cell, tmp_path, error)
    section = sections.made(corrections.EXHIBIT, tmp_path)
    assert [f.text for f in section.findings if "relative error" in f.text] == [
        "Corrections: relative error of the inputs that PETRA reconstructs at the bottom: nothing: 0.2."
    ]
