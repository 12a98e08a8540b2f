"""Every cell with the code, the machine and a command that runs just this cell."""

import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest

from petra_core import methods
from reproduce.cells.kinds import Cell
from reproduce.commands import train as training
from reproduce.data.manifest import built_in
from reproduce.exhibits import provenance
from reproduce.exhibits._exhibit import section as section_of
from reproduce.grids import scales, selection, small
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import depth, gradients, stability
from reproduce.grids.smoke import digits_cell
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.content import Listing, Table, Tone
from tests import fake_records
from tests.sections import made

EVERY_CELL = [pytest.param(name, id=name) for name in scales.SCALES]


@pytest.mark.parametrize("scale", EVERY_CELL)
def test_the_command_of_a_cell_in_a_grid_chooses_it_alone(scale: str) -> None:
    """With the values of five settings, as it was once, a command ran cells of other lengths and rates too."""
    grid = grid_of(scale)
    in_two_precisions = [cell for cells in provenance._planned(scale).values() if len(cells) > 1 for cell in cells]
    for cell in [*grid.cells[:: max(1, len(grid.cells) // 25)], *in_two_precisions]:
        words = shlex.split(provenance.command(cell))
        assert words[:6] == ["python", "-m", "reproduce", "run", scale, "--only"]
        assert selection.select(grid, {}, only=words[6:]) == [cell]
    assert len({provenance.command(cell) for cell in grid.cells}) == len(grid.cells)


def test_a_cell_in_another_precision_is_that_of_the_grid_run_with_that_precision() -> None:
    planned = small.cell("revnet18", methods.PETRA, 4, 1)
    run = replace(planned, precision="bf16", loader="ffcv")
    words = shlex.split(provenance.command(run))
    assert words[5:] == ["--only", f"name={planned.name}", "--loader", "ffcv", "--precision", "bf16"]
    chosen = selection.select(grid_of("small"), {}, only=[words[6]])
    assert selection.with_settings(chosen, loader=words[8], precision=words[10]) == [run]


def test_no_command_is_given_for_what_no_command_makes() -> None:
    left = replace(gradients.cells("small")[0], seed=1234)  # type: ignore[call-arg]  # has a seed
    assert provenance.command(left) == ""


@pytest.mark.parametrize(
    "cell",
    [
        digits_cell(scale="custom"),
        digits_cell("chain8", methods.DSP, 3, 5, scale="custom", learning_rate=1 / 3, drops=(1, 2), precision="bf16"),
        digits_cell(scale="custom", drops=(), momentum=0.0, warmup_epochs=0.0),
    ],
    ids=lambda cell: cell.slug,
)
def test_the_command_of_a_cell_by_hand_gives_the_same_cell(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(provenance.command(cell))
    assert words[:4] == ["python", "-m", "reproduce", "train"]
    made: list[Cell] = []
    original = training.cell_by_hand

    def note(settings: dict[str, object]) -> Cell:
        made.append(original(settings))
        raise click.UsageError("far enough")

    monkeypatch.setattr(training, "cell_by_hand", note)
    with pytest.raises(click.UsageError):
        training.train(words[4:], standalone_mode=False)
    assert made == [cell]


def test_a_cell_that_left_the_grid_is_run_by_hand() -> None:
    assert "reproduce train" in provenance.command(digits_cell(epochs=7))


def test_equal_code_and_machines_have_one_name_and_patches_are_shown_once(tmp_path: Path) -> None:
    for seed in range(3):
        cell = digits_cell(seed=seed)
        fake_records.train(cell, tmp_path, 90.0, code=fake_records.DIRTY, patch=fake_records.PATCH)
    fake_records.train(digits_cell(seed=3), tmp_path, 90.0, code=fake_records.DIRTY, patch="another\n")
    resumed = fake_records.train(digits_cell(seed=4), tmp_path, 90.0, epochs=1)
    fake_records.begin(resumed.cell, tmp_path, code=fake_records.DIRTY, patch=fake_records.PATCH)
    section = made(provenance.EXHIBIT, tmp_path)
    cells = next(block for block in section.folded if isinstance(block, Table))
    assert [row[1].text for row in cells.rows] == ["smoke"] * 5
    assert [row[3].text for row in cells.rows] == ["C1", "C1", "C1", "C2", "C3, C1"]
    assert {row[4].text for row in cells.rows} == {"E1"}
    listings = [block for block in section.folded if isinstance(block, Listing)]
    assert [(listing.key, listing.text) for listing in listings] == [
        ("patch-C1", fake_records.PATCH),
        ("patch-C2", "another\n"),
    ]
    assert any("2 of 3 versions" in finding.text for finding in section.findings)


def test_clean_code_raises_no_finding(tmp_path: Path) -> None:
    fake_records.train(digits_cell(), tmp_path, 90.0)
    section = made(provenance.EXHIBIT, tmp_path)
    assert list(section.findings) == []


def test_data_that_are_not_official_are_said_to_be_so_once(tmp_path: Path) -> None:
    ours = {**built_in("digits"), "official": False, "reason": "a copy", "deviations": ["one file differs"]}
    for seed in range(2):
        fake_records.train(digits_cell(seed=seed), tmp_path, 90.0, data=ours)
    fake_records.train(digits_cell(seed=2), tmp_path, 90.0)
    (finding,) = made(provenance.EXHIBIT, tmp_path).findings
    assert finding.text == "2 cells used data that are not the official ones. a copy; one file differs"
    assert finding.tone is Tone.ALERT


def test_code_that_is_not_known_is_said_to_be(tmp_path: Path) -> None:
    note = "not run from a git checkout: the commit is not known"
    fake_records.train(digits_cell(), tmp_path, 90.0, code={"version": "0.1.0", "commit": None, "note": note})
    section = made(provenance.EXHIBIT, tmp_path)
    versions = next(block for block in section.blocks if isinstance(block, Table) and block.key == "code")
    assert [entry.text for entry in versions.rows[0]][:4] == ["C1", "0.1.0", "not known", note]


def test_a_missing_patch_is_a_problem_of_that_record_alone(tmp_path: Path) -> None:
    record = fake_records.train(digits_cell(), tmp_path, 90.0, code=fake_records.DIRTY, patch=fake_records.PATCH)
    fake_records.train(replace(digits_cell(), seed=1), tmp_path, 90.0)
    (record.path / "diff-1.patch").unlink()
    found = results.read(tmp_path)
    assert len(found.training) == 1
    assert "diff-1.patch" in str(found.problems[0])


def test_cells_that_are_not_run_are_counted_and_not_listed(tmp_path: Path) -> None:
    fake_records.train(digits_cell(), tmp_path, 90.0)
    planned = [*grid_of("smoke").cells, *grid_of("paper").cells]
    section = section_of(provenance.EXHIBIT, Frames(results.read(tmp_path, planned)))
    (cells,) = (block for block in section.folded if isinstance(block, Table))
    assert [row[0].text for row in cells.rows] == [digits_cell().name]
    (finding,) = section.findings
    counts = f"{len(grid_of('smoke').cells) - 1} of “smoke”, {len(grid_of('paper').cells)} of “paper”"
    assert finding.text == f"{len(planned) - 1} planned cells not run: {counts}."


@pytest.mark.parametrize(
    ("cell", "reason", "tone"),
    [
        (digits_cell(), "diverged", Tone.ALERT),
        (stability.cells("small")[0], "diverged", Tone.PLAIN),
        (depth.cells("small")[0], "diverged", Tone.PLAIN),
        (stability.cells("small")[0], "out of memory", Tone.ALERT),
    ],
)
def test_a_failure_is_an_alert_unless_the_study_looks_for_it(
    tmp_path: Path, cell: Cell, reason: str, tone: Tone
) -> None:
    fake_records.begin(cell, tmp_path).fail(reason, "the words of the error")
    (finding,) = made(provenance.EXHIBIT, tmp_path).findings
    assert finding.text == f"1 cell failed: {reason}. {cell.name} (the words of the error)."
    assert finding.tone is tone
