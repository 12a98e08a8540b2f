"""Test that problems are reported, and that equal code and equal machines share one name."""

import tempfile
from pathlib import Path

from petra_core import methods
from reproduce.data.manifest import built_in
from reproduce.exhibits import provenance
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import depth, stability
from reproduce.records import merging
from tests import fake_records
from tests.sections import made, situation

#: Cells of the grid of scale smoke.
CELLS = [recipes.cell("smoke", method=method) for method in methods.PAPER]
OTHER = {**built_in("digits"), "official": False, "reason": "a copy", "deviations": ["one file differs"], "files": {}}


@situation(provenance.EXHIBIT)
def equal_code_and_machines(root: Path) -> None:
    """Equal code and equal machines share one name, every patch is listed once, and a commit may be unknown."""
    for cell in CELLS[:3]:
        fake_records.train(cell, root, 90.0, code=fake_records.DIRTY, patch=fake_records.PATCH)
    fake_records.train(CELLS[3], root, 90.0, code=fake_records.DIRTY, patch="another\n")
    fake_records.train(CELLS[4], root, 90.0, epochs=1)
    fake_records.begin(CELLS[4], root, code=fake_records.DIRTY, patch=fake_records.PATCH)
    unknown = {"version": "0.1.0", "commit": None, "note": "not run from a git checkout: the commit is not known"}
    fake_records.train(CELLS[5], root, 90.0, code=unknown)


@situation(provenance.EXHIBIT)
def runs_on_gpus_and_cpus(root: Path) -> None:
    """A cell that began on a GPU and resumed on a CPU counts as neither."""
    gpu = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200", "cuda_graphs": 4}
    on_both = ([gpu], [gpu, fake_records.ENVIRONMENT], [fake_records.ENVIRONMENT])
    for cell, environments in zip(CELLS, on_both, strict=False):
        for environment in environments:
            record = fake_records.begin(cell, root, environment=environment)
        record.append({"epoch": 1, "test_accuracy": 20.0})


@situation(provenance.EXHIBIT)
def replaced_result(root: Path) -> None:
    """A result that a repetition has replaced is counted, and shown with the result in use."""
    fake_records.train(CELLS[0], root, 90.0)
    with tempfile.TemporaryDirectory() as there:
        fake_records.train(CELLS[0], Path(there), 91.0)
        list(merging.merge(Path(there), root, replace=True))


@situation(provenance.EXHIBIT, "none")
def unofficial_data_and_failures(root: Path) -> None:
    """Unofficial data are one finding, which counts failed cells that did not record their data."""
    for cell in CELLS[:2]:
        fake_records.train(cell, root, 90.0, data=OTHER)
    fake_records.train(CELLS[2], root, 90.0)
    fake_records.begin(CELLS[3], root).fail("diverged", "nan", {"data": OTHER})
    for cell in CELLS[4:]:
        fake_records.begin(cell, root).fail("diverged", "the words of the error")


@situation(provenance.EXHIBIT, "none")
def failures_that_studies_look_for(root: Path) -> None:
    """Divergence is no alert in a study that examines it. Running out of memory is one in any study."""
    for cell in (stability.cells("small")[0], depth.cells("small")[0]):
        fake_records.begin(cell, root).fail("diverged", "the loss is nan")
    fake_records.begin(stability.cells("small")[1], root).fail("out of memory", "8 GB asked for")


def test_cells_not_run_are_counted_but_not_listed(tmp_path: Path) -> None:
    """Planned cells that were not run are counted by scale and not listed."""
    fake_records.train(CELLS[0], tmp_path, 90.0)
    planned = [*grid_of("smoke"), *grid_of("paper")]
    section = made(provenance.EXHIBIT, tmp_path, planned)
    (finding,) = section.findings
    counts = f"{len(grid_of('smoke')) - 1} of “smoke”, {len(grid_of('paper'))} of “paper”"
    assert finding.text == f"{len(planned) - 1} planned cells not run: {counts}."
