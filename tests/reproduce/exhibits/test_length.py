"""Test accuracy against the length of the training: the planned cells, the comparisons, and the sentences."""

from dataclasses import replace
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import length
from reproduce.grids import recipes, scales
from reproduce.grids.plans import length as plan
from reproduce.grids.plans import table2
from reproduce.presentation.content import MINUS, Figure, Section, Table
from tests import fake_records, sections
from tests.sections import run_sets


def write(root: Path, petra: dict[int, float], backpropagation: dict[int, float], seeds: int = 3) -> None:
    """Write seeds with a small spread; a length without a value has no run."""
    for seed in range(seeds):
        for method, by_epochs in ((methods.PETRA, petra), (methods.BACKPROPAGATION, backpropagation)):
            for epochs, reached in by_epochs.items():
                by_seed = 0.01 * seed * min(epochs, 9) if method is methods.PETRA else 0.0
                fake_records.train(
                    plan.plan_cell("small", method, 1, epochs, seed), root, reached + 0.02 * seed + by_seed
                )


def section(root: Path) -> Section:
    return sections.made(length.EXHIBIT, root)


def table(rendered: Section) -> Table:
    (single,) = (block for block in rendered.blocks if isinstance(block, Table))
    return single


@pytest.mark.parametrize("scale", ["small", "narrow", "paper"])
def test_length_cells_differ_from_recipe_in_epochs_and_drops(scale: str) -> None:
    """Cells differ from the recipe in epochs and scaled drops, and include those of the usual length."""
    cells = plan.cells(scale)
    assert len(set(cells)) == len(cells)
    usual = recipes.cell(scale, "revnet18", methods.PETRA, 1)
    for cell in cells:
        settings, others = cell.to_dict(), usual.to_dict()
        differing = {name for name in settings if settings[name] != others[name]}
        assert differing <= {"epochs", "drops", "method", "accumulation", "learning_rate", "seed"}
        fractions = [drop / cell.epochs for drop in cell.drops]
        assert fractions == [drop / usual.epochs for drop in usual.drops]
    shared = set(cells) & set(table2.cells(scale))
    assert {cell.epochs for cell in shared} == {usual.epochs}
    assert plan.plan_cell(scale, methods.PETRA, 1, usual.epochs) in shared, (
        "the scale's own length is not trained twice"
    )


def test_every_length_has_a_backpropagation_run() -> None:
    """Every planned cell has a counterpart that is trained by backpropagation."""
    for scale in scales.SCALES:
        cells = plan.cells(scale)
        for cell in cells:
            assert replace(cell, method=methods.BACKPROPAGATION.name) in cells


def test_length_gaps_and_verdicts(tmp_path: Path) -> None:
    """The gap at every length has its runs and verdict, and lengths without runs are marked."""
    write(tmp_path, {3: 40.0, 9: 55.0}, {3: 52.0, 9: 60.0})
    rendered = section(tmp_path)
    heads = [f"{column.group} {column.name}".strip() for column in table(rendered).columns]
    rows = [dict(zip(heads, row, strict=True)) for row in table(rendered).rows]
    short, middle, long = (row for row in rows if row["method"].text == "PETRA, k = 1" and row["epochs"].text != "81")
    assert short["epochs"].text == "3"
    assert short["accuracy, last epochs points"].raw == pytest.approx(-11.97)
    assert short["accuracy, last epochs points"].text.endswith("(3 + 3)")
    assert short["accuracy, last epochs verdict"].text == "lower"
    assert short["training loss, last epochs difference"].raw == pytest.approx(0.0)
    assert "verdict" not in {head.partition("training loss, last epochs ")[2] for head in heads}, "no margin for a loss"
    last = run_sets(tmp_path, "small", plan.cells("small"))[0].runs
    reached = last[(last["epochs"] == 9) & last["final_accuracy"].notna()].groupby("method")["final_accuracy"].mean()
    assert middle["accuracy, last epochs points"].raw == pytest.approx(reached["PETRA"] - reached["BACKPROPAGATION"])
    assert long["accuracy, %"].text == "not run"
    assert long["accuracy, last epochs points"].text == "not comparable yet"
    assert rendered.sentence.startswith(f"PETRA − backpropagation at k = 1 is {MINUS}12.0")
    assert "3 epochs, learning rate" not in table(rendered).caption, "the length is what differs"
    assert any("Not run at the scale “paper”" in block for block in rendered.blocks if isinstance(block, str))


@pytest.mark.parametrize(
    ("epochs", "gap", "expected"),
    [
        (27, 3.0, "after 27: against"),
        (27, 1.0, "after 27: not against"),
        (27, 2.0, "after 27: cannot tell"),
        (81, 0.1, "after 81: for"),
        (81, 3.0, "after 81: not for"),
    ],
)
def test_decision_rule_for_longer_training(tmp_path: Path, epochs: int, gap: float, expected: str) -> None:
    """The rule gives for, against or undecided according to the gap and the length."""
    write(tmp_path, {epochs: 80.0 - gap}, {epochs: 80.0})
    (finding,) = section(tmp_path).findings
    assert finding.text.endswith(f"by the rule: {expected}.")


def test_length_with_one_run_has_no_interval(tmp_path: Path) -> None:
    write(tmp_path, {3: 40.0}, {3: 50.0})
    write(tmp_path, {81: 49.0}, {81: 50.0}, seeds=1)
    rendered = section(tmp_path)
    assert rendered.sentence.endswith("(one run each) after 81 epochs, in points (scale “small”).")
    assert table(rendered).rows[0][4].text.endswith("(3 + 3)")


def test_length_without_pair_has_no_conclusion(tmp_path: Path) -> None:
    """Without a pair of runs there is no finding, and the figure has the existing runs only."""
    write(tmp_path, {9: 48.0}, {}, seeds=1)
    rendered = section(tmp_path)
    assert rendered.findings == []
    assert table(rendered).rows[1][2].text.endswith("(1 of 3)")
    (figure,) = (block for block in rendered.blocks if isinstance(block, Figure))
    assert "PETRA 48" in figure.description
    assert "Backpropagation" not in figure.description


def test_length_without_runs_has_no_table_or_figure(tmp_path: Path) -> None:
    rendered = section(tmp_path)
    assert not [block for block in rendered.blocks if isinstance(block, Table | Figure)]


def test_length_curves_are_of_one_k(tmp_path: Path) -> None:
    """The figure contains the runs of one k only."""
    for k, reached in ((1, 60.0), (4, 20.0)):
        for method in (methods.PETRA, methods.BACKPROPAGATION):
            fake_records.train(plan.plan_cell("small", method, k, 3), tmp_path, reached)
    (figure,) = [block for block in sections.made(length.EXHIBIT, tmp_path).blocks if isinstance(block, Figure)]
    assert "PETRA 60." in figure.description
