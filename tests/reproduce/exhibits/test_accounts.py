"""Cells are counted for every exhibit that shows them, at each scale, each cell once."""

from dataclasses import replace
from pathlib import Path

from petra_core import methods
from reproduce import published
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import accounts
from reproduce.grids import scales, small
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import figure4, gradients, stability, table4, transformer_errors, transformers
from reproduce.grids.selection import select
from reproduce.records.results import read
from tests import fake_records


def counted(root: Path) -> dict[tuple[str, str], accounts.Account]:
    return accounts.accounts(read(root, [cell for name in scales.SCALES for cell in grid_of(name).cells]))


def test_the_papers_exhibits_come_in_its_order_and_then_the_studies() -> None:
    keys = accounts.keys()
    paper = [row["key"] for row in published.read("exhibits")]
    assert keys[: len(paper)] == paper
    assert keys[len(paper) :] == [study.key for study in accounts.STUDIES]
    assert [accounts.title(key) for key in ("table1", "figure4", "depth")] == ["Table 1", "Figure 4", "Depth and delay"]


def test_without_records_everything_is_planned_and_nothing_run(tmp_path: Path) -> None:
    found = counted(tmp_path)
    assert found["table4", "small"] == accounts.Account("table4", "small", len(table4.cells("small")), 0, {}, 0)
    assert found["figure5", "paper"] == replace(found["figure6", "paper"], key="figure5")
    assert found["figure5", "paper"].planned == len(gradients.cells("paper"))
    for key, shown in (("table4", table4), ("stability", stability), ("figure5", gradients)):
        assert [scale for k, scale in found if k == key] == [name for name in scales.SCALES if shown.cells(name)]
    assert all(account.not_run == account.planned > 0 for account in found.values())


def test_a_cell_counts_for_every_exhibit_that_shows_it_once_whatever_its_precision(tmp_path: Path) -> None:
    shared = small.cell("revnet18", methods.PETRA, 1, 0)
    assert shared in table4.cells("small")
    assert shared in figure4.cells("small")
    fake_records.train(shared, tmp_path, 60.0)
    fake_records.train(replace(shared, precision="bf16"), tmp_path, 60.0, epochs=1)
    fake_records.train(small.cell("revnet18", methods.PETRA, 1, 1), tmp_path, 60.0, epochs=1)
    found = counted(tmp_path)
    for key in ("table4", "figure4", "table2"):
        assert (found[key, "small"].done, found[key, "small"].begun) == (1, 1)
        assert found[key, "small"].not_run == found[key, "small"].planned - 2
    assert found["stability", "small"].not_run == found["stability", "small"].planned


def test_what_an_exhibit_wants_in_two_precisions_counts_twice(tmp_path: Path) -> None:
    wanted = transformer_errors.cells("small")
    planned = counted(tmp_path)["transformers", "small"].planned
    assert planned == len(transformers.cells("small")) == len(set(transformers.cells("small")))
    first = next(cell for cell in wanted if cell.precision == "bf16")
    fake_records.train(first, tmp_path, 60.0)
    found = counted(tmp_path)["transformers", "small"]
    assert (found.done, found.not_run) == (1, planned - 1)


def test_failures_are_counted_by_their_reason(tmp_path: Path) -> None:
    cells = [cell for cell in stability.cells("small") if isinstance(cell, TrainingCell)][:3]
    for cell, reason in zip(cells, ("diverged", "out of memory", "diverged"), strict=True):
        fake_records.begin(cell, tmp_path).fail(reason, "why")
    account = counted(tmp_path)["stability", "small"]
    assert account.failed == {"diverged": 2, "out of memory": 1}
    assert account.not_run == account.planned - 3


def test_the_command_of_an_exhibit_chooses_its_cells() -> None:
    for key, shown in (("figure6", gradients), ("table4", table4)):
        commands = accounts.commands(key)
        for command in commands:
            words = command.split()
            assert words[:4] == ["python", "-m", "reproduce", "run"]
            assert words[5] == "--tables"
            assert set(select(grid_of(words[4]), {}, tables=words[6:])) == set(shown.cells(words[4]))
        assert [command.split()[4] for command in commands] == [name for name in scales.SCALES if shown.cells(name)]
    assert accounts.commands("statistics") == []
