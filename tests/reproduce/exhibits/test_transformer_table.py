"""Test PETRA compared with backpropagation on transformers: the cells, and the texts about their runs."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.cells import networks
from reproduce.cells.kinds import TrainingCell
from reproduce.data.manifest import built_in
from reproduce.exhibits import transformers
from reproduce.grids import recipes, scales
from reproduce.grids.plans.transformers import COMPARED, IMAGES, LANGUAGE, STUDIES, Study, cells
from reproduce.records.record import State, Status
from tests import fake_records
from tests.sections import situation


def test_transformer_cells_differ_in_method_k_seed_and_rate() -> None:
    """Cells differ in method, k, seed and the learning rate that follows from k."""
    images = IMAGES.cells
    assert len(set(images)) == len(images) == 2 * 3 * 3
    assert set(images) < set(cells("small"))
    assert cells("paper") == []
    rates = {cell.accumulation: cell.learning_rate for cell in images if isinstance(cell, TrainingCell)}
    assert rates == pytest.approx({1: 5e-4, 4: 1e-3, 16: 2e-3})
    assert images[0].name == "cifar10-revvit_tiny-w48-backpropagation-k1-adamw-s0-63156d89c1f6"
    stages = networks.build(IMAGES.cell(methods.PETRA, 1), 10)
    assert len(stages) == 14
    assert all(stage.invertible for stage in stages[1:-1])


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: f"{study.model}-{study.scale}")
def test_every_study_compares_with_backpropagation(study: Study) -> None:
    """Every study has cells of PETRA and of backpropagation for all k and seeds."""
    assert COMPARED == (methods.BACKPROPAGATION, methods.PETRA)
    assert {cell.scale for cell in study.cells} == {study.scale}
    assert len(set(study.cells)) == len(COMPARED) * len(study.accumulations) * len(recipes.seeds(study.scale))


def test_smoke_has_a_lower_target_for_transformers() -> None:
    """At scale smoke, the target accuracy of transformers is lower than that of other networks."""
    smoke = scales.by_name("smoke")
    done = State(Status.DONE)
    for study in STUDIES:
        if study.scale == "smoke":
            cell = study.cell(methods.PETRA, 1)
            assert 0 < smoke.target(cell) < smoke.target_accuracy
            assert smoke.falls_short(cell, done, smoke.target(cell))
            assert not smoke.falls_short(cell, done, smoke.target(cell) + 0.1)


@situation(transformers.EXHIBIT)
def runs_on_two_texts(root: Path) -> None:
    """Runs on different texts are in separate tables, whose captions contain the hash of the text."""
    unigram = {"accuracy": 18.0, "bits_per_byte": 4.5}
    for seed, sha256 in enumerate(("aaaa00", "aaaa00", "bbbb00")):
        data = {**built_in("pydoc"), "files": {"pydoc_data.topics": sha256}, "unigram": unigram}
        for method, reached in ((methods.BACKPROPAGATION, 50.0), (methods.PETRA, 48.0 + 0.1 * seed)):
            cell = LANGUAGE.cell(method, 1, seed)
            fake_records.train(cell, root, reached, data=data, extra={"test_bits_per_byte": 2.5})


@situation(transformers.EXHIBIT)
def unfinished_run_on_an_unknown_text(root: Path) -> None:
    """An unfinished run is listed with its progress, without the hash and the frequencies of its text."""
    fake_records.train(LANGUAGE.cell(methods.PETRA, 4), root, 40.0, epochs=2)
