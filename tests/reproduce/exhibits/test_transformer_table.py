"""Test PETRA compared with backpropagation on transformers: the target, and the texts about their runs."""

from pathlib import Path

from petra_core import methods
from reproduce.data.manifest import built_in
from reproduce.exhibits import transformers
from reproduce.grids import scales
from reproduce.grids.plans.transformers import LANGUAGE, STUDIES
from reproduce.records.record import State, Status
from tests import fake_records
from tests.sections import situation


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
