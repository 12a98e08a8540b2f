"""Test the accuracy of the methods: alerts for runs below the accuracy of their scale, and a table for each recipe."""

from dataclasses import replace
from pathlib import Path

from petra_core import methods
from reproduce.exhibits import accuracy
from reproduce.grids import recipes
from reproduce.presentation.content import Role
from tests import fake_records, sections

CELLS = {
    (m, k): recipes.cell("smoke", "revnet18", m, k) for m in (methods.PETRA, methods.BACKPROPAGATION) for k in (1, 32)
}


def test_inaccurate_run_is_the_first_finding(tmp_path: Path) -> None:
    """Runs below the expected accuracy of their scale are the only finding, with the tone ALERT."""
    for cell in CELLS.values():
        fake_records.train(cell, tmp_path, 80.0)  # k = 32 has no expected accuracy
    section = sections.made(accuracy.EXHIBIT, tmp_path)
    (alert,) = section.findings
    assert alert.role is Role.ALERT
    assert alert.text.startswith("Scale “smoke”: 2 runs at k = 1 and 4 not above 90 % test accuracy")
    assert f"{CELLS[methods.PETRA, 1].name}: 80.0 %" in alert.text


def test_failed_run_counts_as_inaccurate(tmp_path: Path) -> None:
    """A failed run counts as inaccurate; without one, the finding states that all runs exceed the threshold."""
    fake_records.train(CELLS[methods.BACKPROPAGATION, 1], tmp_path, 95.0)
    finding, *_ = sections.made(accuracy.EXHIBIT, tmp_path).findings
    assert finding.role is Role.GOOD
    assert "all 1 finished runs at k = 1 and 4 are above 90 % test accuracy" in finding.text
    fake_records.train(CELLS[methods.PETRA, 1], tmp_path, 50.0, epochs=1).fail("diverged", "nan")
    finding, *_ = sections.made(accuracy.EXHIBIT, tmp_path).findings
    assert finding.text.startswith("Scale “smoke”: 1 run at k = 1 and 4 not above")
    assert "diverged" in finding.text


def test_scales_and_recipes_have_separate_tables(tmp_path: Path) -> None:
    """Runs of different scales or recipes are in different tables, whose captions name the scale."""
    smoke = CELLS[methods.PETRA, 1]
    for reached, cell in {
        91.0: smoke,
        92.0: replace(smoke, scale="custom"),
        93.0: replace(smoke, scale="custom", epochs=smoke.epochs + 1),
        94.0: replace(smoke, scale="custom", learning_rate=2 * smoke.learning_rate),
    }.items():
        fake_records.train(cell, tmp_path, reached)
    tables = sections.tables(sections.made(accuracy.EXHIBIT, tmp_path))
    texts = [" ".join(entry.text for row in table.rows for entry in row) for table in tables]
    rendered = [[value for value in ("91.0", "92.0", "93.0", "94.0") if value in text] for text in texts]
    assert sorted(rendered) == [["91.0"], ["92.0"], ["93.0"], ["94.0"]]
    for table, (value,) in zip(tables, rendered, strict=True):
        assert f"scale “{'smoke' if value == '91.0' else 'custom'}”" in table.caption
