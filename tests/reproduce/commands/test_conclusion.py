"""Test the end of a run: means of comparable runs only, and every kind of problem reported once."""

import dataclasses
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import BACKPROPAGATION, DSP, PETRA
from reproduce.cells.kinds import GradientsCell
from reproduce.commands import summary
from reproduce.commands.conclusion import conclude
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.grids.plans.transformers import IMAGES
from reproduce.grids.scales import Scale
from reproduce.records.record import Record, State, Status
from reproduce.running.runner import GridOutcome
from tests.fake_records import complexity_cell, train

CELLS = [recipes.cell("smoke", seed=seed) for seed in range(4)]
NOT_RUN = State(Status.NOT_RUN, 0, 4)


def test_conclusion_groups_problems_and_failures(capsys):
    """The conclusion prints a problem of several cells once, and counts failures by kind."""

    def end(outcome):
        with pytest.raises(SystemExit) as ended:
            conclude(Scale("smoke"), outcome, Path("else where"))
        assert ended.value.code == 1
        output = capsys.readouterr()
        assert output.out.endswith("report --open --records 'else where'\n")
        return output.err

    problems = dict.fromkeys(CELLS[:3], "data/imagenet: imagenet is not prepared. Log in at …")
    problems[CELLS[3]] = "result.json: is damaged"
    output = end(GridOutcome(dict.fromkeys(CELLS, NOT_RUN), problems))
    assert "4 cells have no result" in output
    assert f"{CELLS[0].slug} and 2 more: data/imagenet: imagenet is not prepared" in output
    assert output.count("not prepared") == 1
    assert f"{CELLS[3].slug}: result.json: is damaged" in output
    assert "unfinished" not in output, "they were told already"
    states = (State(Status.FAILED, 1, 4, "diverged"), State(Status.FAILED, 1, 4, "out of memory"))
    output = end(GridOutcome(dict(zip(CELLS, (*states, State(Status.PARTIAL, 1, 4)), strict=False))))
    assert "1 cell diverged, which is a result" in output
    assert "1 cell ran out of memory; --retry-failed runs them again" in output
    assert "1 cell unfinished; the same command resumes" in output


def states(cells, root):
    return {cell: Record.for_cell(cell, root).state() for cell in cells}


def lines(cells, root):
    return summary.table(states(cells, root)).splitlines()


def test_summary_shows_means_and_missing_runs(tmp_path):
    """The summary table contains means, the number of finished seeds, and cells that were not run."""
    cells = CELLS[:3]
    for cell, accuracy in zip(cells, [95.0, 96.0], strict=False):
        train(cell, tmp_path, accuracy)
    cells.append(recipes.cell("smoke", method=DSP, accumulation=4))
    text = lines(cells, tmp_path)
    assert text[0].split() == ["network", "method", "k", "=", "1", "k", "=", "4"]
    assert text[1].startswith("revnet18 w8  ")
    assert text[1].endswith("not run")
    assert text[2].split() == ["revnet18", "w8", methods.PETRA.title, "95.5", "(2", "of", "3)"]


def test_summary_does_not_average_different_recipes(tmp_path):
    """Runs with different recipes are in different tables, whose headings list only the differences."""
    cells = [
        recipes.cell("smoke"),
        recipes.cell("smoke", epochs=1, drops=(), warmup_epochs=0.5),
        recipes.cell("smoke", batch_size=48),
        recipes.cell("smoke", warmup_epochs=1),
        recipes.cell("smoke", learning_rate=0.5),
    ]
    for accuracy, cell in enumerate(cells, start=91):
        train(cell, tmp_path, accuracy)
    text = lines(cells, tmp_path)
    assert sorted(line.split()[-1] for line in text if line.startswith("revnet18")) == [f"{n}.0" for n in range(91, 96)]
    headings = [line for line in text if line.endswith(":")]
    assert len(set(headings)) == 5
    assert any("batch size 48" in line for line in headings)
    assert any("epochs 1, warmup epochs 0.5, drops none" in line for line in headings)
    assert not any("digits" in line for line in headings), "what all share is not told"


def test_summary_counts_probed_runs_once_and_measured_cells(tmp_path):
    """A probed run counts once per seed in the mean, and measured cells are counted."""
    cells = [CELLS[0], *(GradientsCell(**dataclasses.asdict(cell), probe_every=8) for cell in CELLS[:2])]
    for cell, accuracy in zip(cells, (95.0, 95.0, 97.0), strict=True):
        train(cell, tmp_path, accuracy)
    assert [line.split()[-1] for line in lines(cells, tmp_path) if line.startswith("revnet18")] == ["96.0"]
    cells = [complexity_cell(method) for method in (PETRA, BACKPROPAGATION)]
    record = Record.for_cell(cells[0], tmp_path)
    record.begin({}, {})
    record.finish({"bytes": 1})
    assert lines(cells, tmp_path) == ["complexity: 1 of 2 measured"]


def test_summary_has_one_table_per_recipe(tmp_path):
    """All k of AdamW share one table, and the headings of the tables of a scale are unique."""
    cells = [IMAGES.cell(PETRA, k) for k in (1, 4, 16)]
    for cell, accuracy in zip(cells, (51.0, 52.0, 53.0), strict=True):
        train(cell, tmp_path, accuracy)
    text = lines([*cells, recipes.cell("small", drops=())], tmp_path)
    assert [line.split()[-3:] for line in text if line.startswith("revvit")] == [["51.0", "52.0", "53.0"]]
    headings = [line for line in text if line.endswith(":")]
    assert sum("learning rate 0.001414·√(batch·k/256)" in heading for heading in headings) == 1
    assert sum("learning rate 0.1·batch·k/256" in heading for heading in headings) == 1
    headings = [line for line in lines(grid_of("small"), tmp_path) if line.endswith(":")]
    assert len(headings) == len(set(headings)) > 5


@pytest.mark.parametrize(
    ("accuracy", "status", "whole"),
    [(95.0, Status.DONE, True), (80.0, Status.DONE, False), (None, Status.PARTIAL, False)],
)
def test_nothing_missing_requires_complete_accurate_runs(capsys, accuracy, status, whole):
    """The conclusion reports that nothing is missing only if every run finished with the expected accuracy."""
    result = {} if accuracy is None else {"test_accuracy": accuracy}
    outcome = GridOutcome({recipes.cell("smoke"): State(status, 4, 4, result=result)})
    with pytest.raises(SystemExit):
        conclude(Scale("smoke", 90.0, (1, 4)), outcome, Path("records"))
    assert ("Nothing is missing" in capsys.readouterr().out) == whole


def test_conclusion_warns_of_accuracy_near_chance(capsys):
    """The conclusion warns about a finished run with at most twice the accuracy of a guess."""
    broken = State(Status.DONE, 4, 4, result={"test_accuracy": 12.0})
    with pytest.raises(SystemExit):
        conclude(Scale("smoke"), GridOutcome({CELLS[0]: broken}), Path("records"))
    assert "1 cell broken: at most twice the test accuracy of a guess" in capsys.readouterr().err
