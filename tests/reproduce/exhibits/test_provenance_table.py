"""Test that problems are reported, and that equal code and equal machines share one name."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import Cell
from reproduce.data.manifest import built_in
from reproduce.exhibits import provenance
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import depth, stability
from reproduce.presentation.content import Listing, Role, Table
from reproduce.records import merging
from reproduce.records.merging import Decision
from tests import fake_records
from tests.sections import made, table


def test_equal_code_and_machines_share_one_name(tmp_path: Path) -> None:
    """Equal code and equal machines share one name, and every patch is listed once."""
    for seed in range(3):
        cell = recipes.cell("smoke", seed=seed)
        fake_records.train(cell, tmp_path, 90.0, code=fake_records.DIRTY, patch=fake_records.PATCH)
    fake_records.train(recipes.cell("smoke", seed=3), tmp_path, 90.0, code=fake_records.DIRTY, patch="another\n")
    resumed = fake_records.train(recipes.cell("smoke", seed=4), tmp_path, 90.0, epochs=1)
    fake_records.begin(resumed.cell, tmp_path, code=fake_records.DIRTY, patch=fake_records.PATCH)
    section = made(provenance.EXHIBIT, tmp_path)
    cells = next(block for block in section.folded if isinstance(block, Table))
    assert [row[3].text for row in cells.rows] == ["C1", "C1", "C1", "C2", "C3, C1"]
    assert {row[4].text for row in cells.rows} == {"E1"}
    listings = [block for block in section.folded if isinstance(block, Listing)]
    assert [(listing.key, listing.text) for listing in listings] == [
        ("patch-C1", fake_records.PATCH),
        ("patch-C2", "another\n"),
    ]
    assert any("2 of 3 versions" in finding.text for finding in section.findings)


def test_unofficial_data_are_reported_once(tmp_path: Path) -> None:
    """Cells with unofficial data are reported in one finding with reason and deviations."""
    ours = {**built_in("digits"), "official": False, "reason": "a copy", "deviations": ["one file differs"]}
    for seed in range(2):
        fake_records.train(recipes.cell("smoke", seed=seed), tmp_path, 90.0, data=ours)
    fake_records.train(recipes.cell("smoke", seed=2), tmp_path, 90.0)
    section = made(provenance.EXHIBIT, tmp_path)
    (finding,) = section.findings
    assert section.sentence == "3 cells ran on CPUs, none on a GPU."
    assert finding.text.startswith("2 cells used data that differ from the official files: a copy. ")
    assert finding.text.endswith("a copy; one file differs")
    assert finding.role is Role.ALERT


def test_gpu_runs_are_counted_with_their_settings(tmp_path: Path) -> None:
    """Count a cell that began on a GPU and resumed on a CPU as neither."""
    gpu = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200", "cuda_graphs": 4}
    for seed, environments in enumerate(([gpu], [gpu, fake_records.ENVIRONMENT], [fake_records.ENVIRONMENT])):
        for environment in environments:
            record = fake_records.begin(recipes.cell("smoke", seed=seed), tmp_path, environment=environment)
        record.append({"epoch": 1, "test_accuracy": 20.0})
    section = made(provenance.EXHIBIT, tmp_path)
    assert section.sentence == "1 cell ran on CPUs, 1 on a GPU, 1 began on a GPU and ended on a CPU."
    on_gpu, on_cpu = (row[-1].text for row in table(section, "environments").rows)
    assert "cuda graphs: 4" in on_gpu
    assert "cuda graphs" not in on_cpu


def test_replaced_result_is_listed_beside_the_one_in_use(tmp_path: Path) -> None:
    """A result that a repetition has replaced is counted, and shown with the result in use."""
    here, there = tmp_path / "here", tmp_path / "there"
    fake_records.train(recipes.cell("smoke"), here, 90.0)
    fake_records.train(recipes.cell("smoke"), there, 91.0)
    assert [decision for decision, *_ in merging.merge(there, here, replace=True)] == [Decision.EXCHANGED]
    section = made(provenance.EXHIBIT, here)
    assert any(finding.text.startswith("1 result replaced by repetitions") for finding in section.findings)
    (row,) = table(section, "replaced").rows
    assert [entry.text for entry in row if "%" in entry.text] == ["90.00 %", "91.00 %"]


def test_unknown_commit_is_reported(tmp_path: Path) -> None:
    """A run outside a git checkout has the commit not known and the reason."""
    note = "not run from a git checkout: the commit is not known"
    fake_records.train(recipes.cell("smoke"), tmp_path, 90.0, code={"version": "0.1.0", "commit": None, "note": note})
    section = made(provenance.EXHIBIT, tmp_path)
    (version,) = table(section, "code").rows
    assert [entry.text for entry in version][:4] == ["C1", "0.1.0", "not known", note]


def test_cells_not_run_are_counted_but_not_listed(tmp_path: Path) -> None:
    """Planned cells that were not run are counted by scale and not listed."""
    fake_records.train(recipes.cell("smoke"), tmp_path, 90.0)
    planned = [*grid_of("smoke"), *grid_of("paper")]
    section = made(provenance.EXHIBIT, tmp_path, planned)
    (cells,) = (block for block in section.folded if isinstance(block, Table))
    assert [row[0].text for row in cells.rows] == [recipes.cell("smoke").name]
    (finding,) = section.findings
    counts = f"{len(grid_of('smoke')) - 1} of “smoke”, {len(grid_of('paper'))} of “paper”"
    assert finding.text == f"{len(planned) - 1} planned cells not run: {counts}."


@pytest.mark.parametrize(
    ("cell", "reason", "role"),
    [
        (recipes.cell("smoke"), "diverged", Role.ALERT),
        (stability.cells("small")[0], "diverged", Role.PLAIN),
        (depth.cells("small")[0], "diverged", Role.PLAIN),
        (stability.cells("small")[0], "out of memory", Role.ALERT),
    ],
)
def test_failure_is_an_alert_unless_the_study_expects_it(tmp_path: Path, cell: Cell, reason: str, role: Role) -> None:
    """A failure has tone ALERT, except divergence in a study that examines it."""
    fake_records.begin(cell, tmp_path).fail(reason, "the words of the error")
    (finding,) = made(provenance.EXHIBIT, tmp_path).findings
    assert finding.text == f"1 cell failed: {reason}. {cell.name} (the words of the error)."
    assert finding.role is role


def test_failed_cells_with_recorded_data_are_not_counted(tmp_path: Path) -> None:
    """Only failed cells that did not record their data are counted as such."""
    data = {"dataset": "digits", "official": False, "reason": "a test", "deviations": ["none"], "files": {}}
    fake_records.train(recipes.cell("smoke"), tmp_path, 95.0, data=data)
    fake_records.begin(recipes.cell("smoke", seed=1), tmp_path).fail("diverged", "nan", {"data": data})
    for seed in (2, 3):
        fake_records.begin(recipes.cell("smoke", seed=seed), tmp_path).fail("diverged", "nan")
    texts = [finding.text for finding in made(provenance.EXHIBIT, tmp_path).findings]
    assert any("2 failed cells did not write down which they used" in text for text in texts)
