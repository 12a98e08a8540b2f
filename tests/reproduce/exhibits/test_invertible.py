"""Test the invertible RevNet compared with the paper's: which memory vanishes, which grows, and both accuracies."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.cells.networks import HELD
from reproduce.exhibits import invertible
from reproduce.grids import recipes
from reproduce.grids.plans.invertible import OURS, PAPERS
from reproduce.modelling.invertible import DEPTHS, predict_bytes
from tests import fake_records
from tests.sections import entries, made, table

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize("depth", DEPTHS)
def test_inner_stage_buffers_vanish(depth: int) -> None:
    """With invertible stages, only the stem buffers inputs."""
    theirs, ours = (predict_bytes(family, depth)["held"]["inputs"] for family in (PAPERS, OURS))
    stem = (
        4 * 64 * 3 * 224 * 224 * 2 * ({18: 10, 50: 18}[depth] - 1)
    )  # float32 images, one for each micro-batch of staleness
    assert ours == stem
    assert theirs > 3 * stem


def test_memory_shrinks_at_depth_50_but_not_at_depth_18(tmp_path: Path) -> None:
    """Buffers vanish at every depth, but the total memory does not shrink at every depth."""
    sums = {(f, d): predict_bytes(f, d)["peak"]["sum"] for f in (PAPERS, OURS) for d in (18, 50)}
    assert sums[OURS, 50] < 0.4 * sums[PAPERS, 50]
    assert sums[OURS, 18] > sums[PAPERS, 18]
    messages = [predict_bytes(f, 18)["held"]["messages"] for f in (OURS, PAPERS)]
    assert messages[0] / messages[1] == pytest.approx(2.23, abs=0.1)  # two messages down at each hop in lockstep
    text = made(invertible.EXHIBIT, tmp_path).sentence
    assert "takes RevNet-18 from 7.1 to 9.1 GB and RevNet-50 from 42.6 to 16.5 GB" in text


def test_invertible_table_adds_up(tmp_path: Path) -> None:
    """Every column of the memory table adds up to its sum."""
    adding_up = table(made(invertible.EXHIBIT, tmp_path), "invertible")
    for _, rows in adding_up.bodies():
        assert [row[0].text for row in rows] == [*(kind.replace("_", " ") for kind in HELD), "sum"]
        for column in range(1, len(adding_up.columns) - 1):
            values = [float(row[column].raw) for row in rows]
            assert values[-1] == pytest.approx(sum(values[:-1]))


def test_runs_are_compared_by_method_k_and_seed(tmp_path: Path) -> None:
    """Runs are compared by method, k and seed, and the memory is the measured peak."""
    for seed in range(3):
        for network, reached in (("revnet18", 60.0), ("invertible_revnet18", 58.0 + 0.01 * seed)):
            fake_records.train(recipes.cell("small", network, methods.PETRA, 4, seed), tmp_path, reached + 0.1 * seed)
    section = made(invertible.EXHIBIT, tmp_path)
    run, absent = (
        entries(table(section, "invertible-small"), k, "PETRA", "Invertible RevNet-18, width 8")
        for k in ("k = 4", "k = 1")
    )
    assert run["", "to the paper's"].raw == pytest.approx(-1.99)
    assert run["", "verdict"].text == "lower"
    assert run["", "peak, MB"].text == "1.2"  # the 1,234,567 bytes of the fake record
    assert [absent["", name].text for name in ("last epoch, %", "to the paper's", "peak, MB")] == [
        "not run",
        "not comparable yet",
        "",
    ]
    assert "1 difference of" in section.findings[-1].text
