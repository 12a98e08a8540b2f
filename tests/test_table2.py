"""Table 2: published accuracies with their marks; ours only at the paper's scale."""

from pathlib import Path

from petra_core import methods
from reproduce import published
from reproduce.scales import digits_cell
from reproduce.tables import results, table2
from reproduce.tables.content import Entry, Section, Table, Tone
from tests import fake_records

CIFAR10 = {"dataset": "cifar10", "image_size": 32}


def entries(section: Section, network: str, method: str) -> list[Entry]:
    table = next(block for block in section.blocks if isinstance(block, Table))
    return next(list(row) for row in table.rows if (row[0].text, row[1].text) == (network, method))


def test_published_values_are_there_and_nothing_is_invented(tmp_path: Path) -> None:
    section = table2.section(results.read(tmp_path))
    row = entries(section, "RevNet-50", "PETRA")
    assert [entry.text for entry in row[2:]] == ["30.4", "94.5", "not run", "59.6", "not run", "74.8", "not run"]
    assert all(entry.mark is published.Mark.PAPER for entry in row[3::2])
    torchvision = entries(section, "ResNet-18 (torchvision)", "Backpropagation")
    assert torchvision[7].text == "69.8"
    assert "not run" not in {entry.text for entry in torchvision}
    assert section.findings[0].text == "Table 2: 0 of 27 cells have been run at the paper's scale."
    assert section.findings[0].tone is Tone.MISSING


def test_only_runs_of_the_papers_scale_stand_beside_it(tmp_path: Path) -> None:
    for scale, reached in (("small", 80.0), ("paper", 94.0)):
        for seed in (0, 1):
            cell = digits_cell("revnet18", methods.PETRA, 2, seed, scale=scale, **CIFAR10)
            fake_records.train(cell, tmp_path, reached + seed)
    other = digits_cell("revnet18", methods.PETRA, 4, scale="paper", **CIFAR10)
    fake_records.train(other, tmp_path, 94.0, epochs=1)
    section = table2.section(results.read(tmp_path))
    ours = entries(section, "RevNet-18", "PETRA")[4].text
    assert "80" not in ours
    assert ours.startswith("94.5 ± ")
    assert "(k = 2, n = 2)" in ours
    assert f"k = 4: seed 0: 1 of {other.epochs} epochs" in ours
    assert entries(section, "RevNet-18", "Backpropagation")[4].text == "not run"
    assert "1 of 27 cells" in section.findings[0].text
