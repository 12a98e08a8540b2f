"""PETRA on transformers beside backpropagation: the cells, and what is said of their runs."""

from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from reproduce.cells import networks
from reproduce.cells.kinds import TrainingCell
from reproduce.cells.transformers import MODELS
from reproduce.data.manifest import built_in
from reproduce.exhibits import transformers
from reproduce.grids import scales
from reproduce.grids.plans import transformer_errors
from reproduce.grids.plans.transformers import IMAGES, STUDIES, Study, cells
from reproduce.records.record import State, Status
from reproduce.show.content import Entry, Section, Table
from tests import fake_records
from tests.sections import made, tables


def read(root: Path) -> Section:
    return made(transformers.EXHIBIT, root)


def entries(table: Table, row: int) -> dict[str, Entry]:
    heads = [f"{column.group} {column.name}".strip() for column in table.columns]
    return dict(zip(heads, table.rows[row], strict=True))


def test_the_cells_differ_in_method_k_seed_and_the_rate_of_their_samples() -> None:
    images = IMAGES.cells
    assert len(set(images)) == len(images) == 2 * 3 * 3
    assert set(images) < set(cells("small"))
    assert cells("paper") == []
    rates = {cell.accumulation: cell.learning_rate for cell in images if isinstance(cell, TrainingCell)}
    assert rates == pytest.approx({1: 5e-4, 4: 1e-3, 16: 2e-3})
    assert images[0].name == "cifar10-revvit_tiny-w48-backpropagation-k1-adamw-s0-63156d89c1f6"
    stages = networks.build(IMAGES.example, 10)
    assert len(stages) == 14
    assert all(stage.invertible for stage in stages[1:-1])


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.key)
def test_every_study_compares_with_backpropagation(study: Study) -> None:
    assert study.compared[0] is methods.BACKPROPAGATION
    assert methods.PETRA in study.compared
    assert {cell.scale for cell in study.cells} == {study.scale}
    assert len(set(study.cells)) == len(study.compared) * len(study.accumulations) * len(study.seeds)


def test_a_scale_expects_less_of_transformers_where_it_says_so() -> None:
    smoke = scales.by_name("smoke")
    done = State(Status.DONE)
    for study in STUDIES:
        if study.scale == "smoke":
            assert 0 < smoke.target(study.example) < smoke.target_accuracy
            assert smoke.falls_short(study.example, done, smoke.target(study.example))
            assert not smoke.falls_short(study.example, done, smoke.target(study.example) + 0.1)


def test_runs_are_compared_by_k_and_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for method, reached in ((methods.BACKPROPAGATION, 60.0), (methods.PETRA, 58.0 + 0.01 * seed)):
            fake_records.train(IMAGES.cell(method, 4, seed), tmp_path, reached + seed)
    found = read(tmp_path)
    (table,) = tables(found)
    assert [row[0].text for row in table.rows] == ["Backpropagation", "PETRA"]
    row = entries(table, 1)
    assert row["k = 4 difference"].raw == pytest.approx(-1.99)
    assert row["k = 4 verdict"].text == "differ"
    assert row["k = 1 last epoch, %"].text == "not run"
    assert "RevViT-Tiny, width 48, 4-pixel patches" in table.caption
    assert "1 comparison: differ 1" in found.findings[0].text


LANGUAGE = next(study for study in STUDIES if study.key == "language-small")


def text_data(sha256: str, accuracy: float = 18.0) -> dict[str, Any]:
    unigram = {"accuracy": accuracy, "bits_per_byte": 4.5}
    return {**built_in("pydoc"), "files": {"pydoc_data.topics": sha256}, "unigram": unigram}


def test_runs_on_two_texts_are_never_in_one_table(tmp_path: Path) -> None:
    for seed, sha256 in enumerate(("aaaa00", "aaaa00", "bbbb00")):
        for method, reached in ((methods.BACKPROPAGATION, 50.0), (methods.PETRA, 48.0 + 0.1 * seed)):
            cell = LANGUAGE.cell(method, 1, seed)
            fake_records.train(cell, tmp_path, reached, data=text_data(sha256), extra={"test_bits_per_byte": 2.5})
    both = tables(read(tmp_path))
    assert [table.key for table in both] == ["language-small-aaaa00", "language-small-bbbb00"]
    assert "the text of Python 3.11.7 (SHA-256 aaaa00" in both[0].caption
    for table, n in zip(both, (2, 1), strict=True):
        assert [row[0].text for row in table.rows] == ["A guess", "Frequencies of bytes", "Backpropagation", "PETRA"]
        row = entries(table, 3)
        assert f"({n} of 3)" in row["k = 1 last epoch, %"].text
        assert row["k = 1 bits per byte"].raw == 2.5
        assert row["k = 16 bits per byte"].text == "not run"
    guess, frequencies = both[0].rows[:2]
    assert (guess[1].raw, guess[4].raw) == (100 / 256, 8.0)
    assert (frequencies[1].raw, frequencies[4].raw) == (18.0, 4.5)


def test_an_unfinished_run_is_shown_before_its_text_is_known(tmp_path: Path) -> None:
    fake_records.train(LANGUAGE.cell(methods.PETRA, 4), tmp_path, 40.0, epochs=2)
    (table,) = tables(read(tmp_path))
    assert [row[0].text for row in table.rows] == ["Backpropagation", "PETRA"]  # none has said what bytes alone can do
    assert any("2 of " in entry.text for entry in table.rows[1])
    assert "SHA-256" not in table.caption


def test_errors_of_reconstructed_inputs_are_shown_by_depth_and_arithmetic(tmp_path: Path) -> None:
    for precision, error in (("float32", 1e-6), ("bf16", 1e-2)):
        for seed in (0, 1):
            cell = transformer_errors.planned("revvit_micro12", precision, seed)
            record = fake_records.begin(cell, tmp_path)
            measured = {
                f"{cause}/input": [None, *[error * (2 if cause == "training" else 1)] * 12, None]
                for cause in ("rounding", "rounding_bfloat16", "training")
            }
            for epoch in range(1, cell.epochs + 1):
                record.append({"epoch": epoch, "test_accuracy": 50.0, "probes": 2, "measured": measured})
            record.finish({"test_accuracy": 50.0, "best_test_accuracy": 50.0, "train_loss": 1.0, "peak_bytes": 1})
    unfinished = fake_records.begin(transformer_errors.planned("revvit_micro24", "bf16"), tmp_path)
    unfinished.append({"epoch": 1, "test_accuracy": 50.0, "probes": 2, "measured": {"training/input": [9.0] * 26}})
    found = read(tmp_path)
    (table,) = tables(found)
    assert [row[0].raw for row in table.rows] == [4, 12, 24, 48]
    assert all(MODELS[model].depth == depth for model, depth in transformer_errors.MODELS.items())
    assert {name: entry.raw for name, entry in entries(table, 1).items()} == {
        "blocks": 12,
        "J": 14,
        "float32 rounding": pytest.approx(1e-6),
        "float32 training": pytest.approx(2e-6),
        "bfloat16 by autocast rounding": pytest.approx(1e-2),
        "bfloat16 by autocast training": pytest.approx(2e-2),
        "bfloat16 streams rounding": pytest.approx(1e-6),
    }
    assert table.rows[1][2].text.endswith("(2)")
    assert {entry.text for row in table.rows[2:] for entry in row[2:]} == {"not run"}
    assert found.coverage == "small: 2 of 12 runs finished; small-bf16: 2 of 12 runs finished"


def test_errors_of_one_arithmetic_alone_have_their_table(tmp_path: Path) -> None:
    record = fake_records.begin(transformer_errors.planned("revvit_micro12", "bf16"), tmp_path)
    for epoch in (1, 2, 3):
        record.append({"epoch": epoch, "test_accuracy": 50.0, "probes": 2, "measured": {"training/input": [0.5] * 14}})
    record.finish({"test_accuracy": 50.0, "best_test_accuracy": 50.0, "train_loss": 1.0, "peak_bytes": 1})
    (table,) = tables(read(tmp_path))
    row = entries(table, 1)
    assert row["bfloat16 by autocast training"].raw == 0.5
    assert {row[name].text for name in row if name.startswith("float32")} == {"not run"}
