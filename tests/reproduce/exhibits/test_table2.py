"""Test Table 2: which runs are listed next to a published value, and PETRA compared with both batches."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import table2
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import SWEEPS, Sweep
from reproduce.presentation.content import TIMES, Entry, ExhibitStatus, Role, Section
from tests import fake_records, sections

SMALL = "table2-small-cifar10"


def published_row(section: Section, network: str, key: str = "table2") -> dict[tuple[str, str], Entry]:
    """Return the row of PETRA on CIFAR-10."""
    return sections.entries(sections.table(section, key), "CIFAR-10", network, "PETRA")


def at(section: Section, k: int, images: int) -> dict[str, Entry]:
    """Return the row of RevNet-18 at `small` with this number of images per update."""
    row = sections.entries(sections.table(section, SMALL), "RevNet-18, width 8", str(k), str(images))
    return {name: entry for (_, name), entry in row.items()}


def read(root: Path) -> Section:
    return sections.made(table2.EXHIBIT, root)


def train(root: Path, cells: list[TrainingCell], reached: float, step: float = 0.1) -> None:
    for cell in cells:
        fake_records.train(cell, root, reached + step * cell.seed)


def of_seeds(method: Method, k: int, seeds: tuple[int, ...] = (0, 1, 2), **changes: object) -> list[TrainingCell]:
    return [recipes.cell("small", "revnet18", method, k, seed, **changes) for seed in seeds]


def test_published_value_is_compared_at_best_k(tmp_path: Path) -> None:
    """PETRA is compared with the published value at its best k, which the table states."""
    seeds = range(2)
    train(tmp_path, [recipes.cell("paper", "revnet18", methods.PETRA, 2, seed) for seed in seeds], 94.9)
    train(tmp_path, [recipes.cell("paper", "revnet18", methods.PETRA, 4)], 93.0)
    fake_records.train(recipes.cell("paper", "revnet34", methods.PETRA, 8), tmp_path, 94.0, epochs=41)
    section = read(tmp_path)
    row = published_row(section, "RevNet-18")
    assert row["", "ours§"].text.endswith("(2 of 3)")
    assert row["", "our k§"].text == "2"
    best = [_best(tmp_path, recipes.cell("paper", "revnet18", methods.PETRA, 2, seed)) for seed in seeds]
    assert row["", "difference"].raw == pytest.approx(sum(best) / 2 - 94.9)
    begun = published_row(section, "RevNet-34")
    assert (begun["", "ours§"].text, begun["", "our k§"].text) == (f"41 of 300 epochs; 2 {TIMES} not run", "8")
    assert section.findings[1].text.startswith("Table 2: 1 of 27 published values has a run")
    assert section.findings[0].text.startswith(
        "Table 2: our run of the paper's size differs from the published value by "
    )


def _best(root: Path, cell: TrainingCell) -> float:
    result = fake_records.Record.for_cell(cell, root).read().result
    assert result is not None
    return float(result["best_test_accuracy"])


def test_table2_excludes_other_recipes(tmp_path: Path) -> None:
    """Treat a cell with the same network, method and k but another length or rate as another experiment."""
    train(tmp_path, [recipes.cell("paper", "revnet18", methods.PETRA, 2, epochs=30, drops=())], 99.0)
    train(tmp_path, of_seeds(methods.PETRA, 2, learning_rate=0.3), 99.0)
    section = read(tmp_path)
    assert [table.key for table in sections.tables(section)] == ["table2"]
    assert any("0 of 27 published values" in finding.text for finding in section.findings)


def test_scales_and_precisions_have_separate_tables(tmp_path: Path) -> None:
    """Scales and precisions have separate tables, and runs in bf16 are separate from float32."""
    train(tmp_path, of_seeds(methods.PETRA, 1), 60.0)
    train(tmp_path, [recipes.cell("paper", "revnet18", methods.PETRA, 2, precision="bf16", loader="memory")], 94.0)
    single = recipes.cell("paper", "revnet18", methods.PETRA, 2)
    train(tmp_path, [single], 95.0)
    section = read(tmp_path)
    assert {table.key for table in sections.tables(section)} == {
        *("table2", "table2-paper-bf16"),
        *(f"table2-{key}-cifar10" for key in ("small", "paper", "paper-bf16")),
    }
    ours = published_row(section, "RevNet-18")["", "ours§"]
    assert ours.text == f"{_best(tmp_path, single):.2f} (1 of 3)"
    assert published_row(section, "RevNet-18", "table2-paper-bf16")["", "ours§"].raw != ours.raw
    assert any("1 of 27 published values" in finding.text for finding in section.findings)


def test_petra_is_paired_with_both_batch_sizes(tmp_path: Path) -> None:
    """PETRA is compared with backpropagation at the same batch per update and at the fixed batch."""
    train(tmp_path, of_seeds(methods.PETRA, 4), 60.0)
    train(tmp_path, of_seeds(methods.BACKPROPAGATION, 4), 62.0)
    train(tmp_path, of_seeds(methods.BACKPROPAGATION, 1, batch_size=64), 59.0, step=0.3)
    section = read(tmp_path)
    row = at(section, 4, 128)
    assert row["to the same batch"].raw == pytest.approx(-2.0)
    assert row["to the fixed batch"].raw == pytest.approx(0.8)
    assert at(section, 8, 256)["PETRA"].text == "not run"
    fixed = at(section, 1, 64)
    assert fixed["backpropagation"].raw == pytest.approx(59.3)
    assert (fixed["PETRA"].raw, fixed["to the same batch"].text) == ("", "")


def test_table2_reports_unfinished_and_failed_runs(tmp_path: Path) -> None:
    """Unfinished and failed runs are counted, and the hint has the state of each seed."""
    first, second, third = of_seeds(methods.PETRA, 1)
    fake_records.train(first, tmp_path, 60.0)
    fake_records.train(second, tmp_path, 60.0, epochs=2)
    fake_records.train(third, tmp_path, 60.0, epochs=1).fail("out of memory", "8 GB asked for")
    rendered = at(read(tmp_path), 1, 32)["PETRA"]
    assert rendered.text == "60.00 (1 of 3; 1 out of memory)"
    assert rendered.hint == "seed 1: 2 of 3 epochs; seed 2: out of memory (epoch 2 of 3)"


def test_differences_have_verdicts_and_run_counts(tmp_path: Path) -> None:
    """Every difference has a verdict and the number of runs of both sides."""
    for k in table2.ACCUMULATIONS:
        for cell in of_seeds(methods.PETRA, k):
            fake_records.train(cell, tmp_path, 60.0 + (0.0, 1.0, -1.0)[cell.seed] + (k == 2) * 3.0)
            other = recipes.cell("small", "revnet18", methods.BACKPROPAGATION, k, cell.seed)
            fake_records.train(other, tmp_path, 60.0 + (0.0, 1.0, -0.7)[cell.seed])
    section = read(tmp_path)
    assert at(section, 2, 64)["verdict"].text == "higher"
    assert at(section, 4, 128)["verdict"].text == "open"
    assert at(section, 4, 128)["to the same batch"].text.endswith("(3 + 3)")
    assert section.findings[-1].text.endswith(": 1 higher, 5 open.")


def test_published_value_within_interval_agrees(tmp_path: Path) -> None:
    """A published value within the interval of our mean has the verdict agree."""
    for seed in range(3):
        cell = recipes.cell("paper", "revnet18", methods.PETRA, 2, seed)
        fake_records.train(cell, tmp_path, 94.0, extra={"best_test_accuracy": 94.7 + 0.2 * seed})
    section = read(tmp_path)
    row = published_row(section, "RevNet-18")
    assert row["", "difference"].raw == pytest.approx(0.0)
    assert row["", "verdict"].text == "agree"


@pytest.mark.parametrize("sweep", SWEEPS.values(), ids=lambda sweep: sweep.scale)
def test_matched_backpropagation_has_same_images_per_update(sweep: Sweep) -> None:
    """Matched backpropagation differs from PETRA only in the method; the baseline has twice the batch size."""
    for k in table2.ACCUMULATIONS:
        petra, matched = (
            sweep.cell(sweep.datasets[0], "revnet18", m, k) for m in (methods.PETRA, methods.BACKPROPAGATION)
        )
        assert {name for name, value in petra.to_dict().items() if value != matched.to_dict()[name]} == {"method"}
    baseline = sweep.baseline(sweep.datasets[0], "revnet18")
    assert baseline.batch_size == 2 * petra.batch_size  # CIFAR-10: 128 and 64, or half of both
    assert baseline.accumulation == 1


def test_table_by_k_uses_last_epoch_accuracy(tmp_path: Path) -> None:
    """The table by k contains the accuracy of the last epoch, not the best one."""
    (cell,) = of_seeds(methods.PETRA, 1, (0,))
    fake_records.train(cell, tmp_path, 60.0, extra={"best_test_accuracy": 65.0})
    assert at(read(tmp_path), 1, 32)["PETRA"].raw == 60.0


def test_differing_value_disagrees_and_all_precisions_count(tmp_path: Path) -> None:
    """A mean that differs from the published value disagrees, and runs of every precision are counted."""
    for seed in range(3):
        cell = recipes.cell("paper", "revnet18", methods.PETRA, 2, seed)
        fake_records.train(cell, tmp_path, 90.0, extra={"best_test_accuracy": 90.0 + 0.1 * seed})
    fake_records.train(recipes.cell("paper", "revnet34", methods.PETRA, 2, precision="bf16"), tmp_path, 94.0)
    section = read(tmp_path)
    assert sections.status_of("table2", tmp_path) is ExhibitStatus.DIFFERS
    assert published_row(section, "RevNet-18")["", "verdict"].role is Role.ALERT
    assert any("2 of 27 published values" in finding.text for finding in section.findings)
