"""Every cell with the code, the machine and a command that runs just this cell."""

import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest

from petra_core import methods
from reproduce import cli, scales
from reproduce.cells import Cell
from reproduce.data.manifest import built_in
from reproduce.scales import digits_cell
from reproduce.tables import provenance, results
from reproduce.tables.content import Listing, Table, Tone
from tests import fake_records

GRID = scales.by_name("smoke").cells


@pytest.mark.parametrize("cell", [GRID[0], GRID[7], GRID[12], GRID[-1]], ids=lambda cell: cell.slug)
def test_the_command_of_a_cell_in_a_grid_chooses_it_alone(cell: Cell) -> None:
    words = shlex.split(provenance.command(cell))
    assert words[:5] == ["python", "-m", "reproduce", "run", "smoke"]
    only = [word for flag, word in zip(words[5::2], words[6::2], strict=True) if flag == "--only"]
    assert len(only) == (len(words) - 5) // 2
    assert cli.select(GRID, only) == [cell]


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
    original = cli.cell_by_hand

    def note(settings: dict[str, object]) -> Cell:
        made.append(original(settings))
        raise click.UsageError("far enough")

    monkeypatch.setattr(cli, "cell_by_hand", note)
    with pytest.raises(click.UsageError):
        cli.train(words[4:], standalone_mode=False)
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
    section = provenance.section(results.read(tmp_path))
    cells = next(block for block in section.folded if isinstance(block, Table))
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
    section = provenance.section(results.read(tmp_path))
    assert list(section.findings) == []


def test_data_that_are_not_official_are_said_to_be_so_once(tmp_path: Path) -> None:
    ours = {**built_in("digits"), "official": False, "reason": "a copy", "deviations": ["one file differs"]}
    for seed in range(2):
        fake_records.train(digits_cell(seed=seed), tmp_path, 90.0, data=ours)
    fake_records.train(digits_cell(seed=2), tmp_path, 90.0)
    (finding,) = provenance.section(results.read(tmp_path)).findings
    assert finding.text == "2 cells used data that are not the official ones. a copy; one file differs"
    assert finding.tone is Tone.ALERT


def test_code_that_is_not_known_is_said_to_be(tmp_path: Path) -> None:
    note = "not run from a git checkout: the commit is not known"
    fake_records.train(digits_cell(), tmp_path, 90.0, code={"version": "0.1.0", "commit": None, "note": note})
    section = provenance.section(results.read(tmp_path))
    versions = next(block for block in section.blocks if isinstance(block, Table) and block.key == "code")
    assert [entry.text for entry in versions.rows[0]][:4] == ["C1", "0.1.0", "not known", note]


def test_a_missing_patch_is_a_problem_of_that_record_alone(tmp_path: Path) -> None:
    record = fake_records.train(digits_cell(), tmp_path, 90.0, code=fake_records.DIRTY, patch=fake_records.PATCH)
    fake_records.train(replace(digits_cell(), seed=1), tmp_path, 90.0)
    (record.path / "diff-1.patch").unlink()
    found = results.read(tmp_path)
    assert len(found.training) == 1
    assert "diff-1.patch" in str(found.problems[0])
