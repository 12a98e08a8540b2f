"""Test masked language modelling on the text that comes with Python: the text, the masks, and the training."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from petra_core.models import sequential
from reproduce.cells import networks
from reproduce.cells.kinds import StageCostCell
from reproduce.data import corpus, text
from reproduce.data.corpus import Corpus
from reproduce.data.errors import DataError
from reproduce.data.loader import Evaluation, Loader
from reproduce.data.manifest import built_in
from reproduce.data.sample_hash import INITIALISATION, derive_seed, sample_hashes
from reproduce.data.sources import open_data
from reproduce.data.text import IGNORED, MASK, Text
from reproduce.measures import stage_costs
from tests.example_cells import LANGUAGE, LANGUAGE_NETWORK
from tests.trainings import run

CPU = torch.device("cpu")
SHORT = "Simple is better than complex. Complex is better than complicated. Flat is better than nested. " * 30


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """Replace Python's text by a text of a thousand bytes."""
    split = corpus.split(SHORT)
    monkeypatch.setattr(corpus, "pydoc", lambda: split)
    return split


def test_validation_paragraphs_are_not_in_training_text() -> None:
    """No validation paragraph occurs in the training text, and the recorded SHA-256 covers both."""
    split = corpus.pydoc()
    train, test = (part.decode(errors="ignore") for part in (split.train, split.test))
    known = {" ".join(paragraph.split()) for paragraph in train.split("\n\n")}
    assert len(test) > 20_000
    assert not [p for p in test.split("\n\n")[1:] if " ".join(p.split()) in known]
    assert hashlib.sha256(split.train + split.test).hexdigest() == split.sha256
    assert corpus.without_repetitions("a b\n\nc\n\na\n  b\n\n\n\nd\n\nc") == "a b\n\nc\n\nd"


def test_masking_follows_bert() -> None:
    """Of 15 % chosen bytes, 80 % are masked, 10 % replaced and 10 % kept, differently in every sequence."""
    tokens = torch.full((500, 200), 65, dtype=torch.uint8)
    inputs, targets = text.mask_tokens(tokens, sample_hashes(0, 0, 1, 500))
    chosen = targets != IGNORED
    assert torch.equal(inputs[~chosen], tokens[~chosen].long())
    assert (targets[chosen] == 65).all()
    assert chosen.double().mean().item() == pytest.approx(0.15, abs=0.005)
    read = inputs[chosen]
    hidden, left = (read == MASK).double().mean().item(), (read == 65).double().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert left == pytest.approx(0.1, abs=0.02)
    replaced = read[(read != MASK) & (read != 65)]
    assert len(replaced.unique()) == 255
    assert len({tuple(row) for row in chosen.tolist()}) == 500  # every sequence has a different mask


def test_other_positions_keep_the_text() -> None:
    """Inputs at other positions and targets at chosen positions together are the text."""
    content = corpus.split(SHORT).train
    rows = {content[i : i + 16] for i in range(0, len(content) - 15, 16)}
    x, y = next(iter(Loader(Text(content, 16, CPU), 8, seed=0).epoch(0)))
    for tokens, targets in zip(x, y, strict=True):
        assert bytes(torch.where(targets == IGNORED, tokens, targets).tolist()) in rows


def test_validation_masks_do_not_depend_on_seed(short: Corpus) -> None:
    """Validation batches and provenance are the same for every seed."""
    first, second = (open_data(replace(LANGUAGE, seed=seed), CPU) for seed in (0, 1))
    (x, y), (other_x, other_y) = (next(iter(data.test)) for data in (first, second))
    assert torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert first.test.samples == int((y != IGNORED).sum())
    assert first.provenance == second.provenance
    assert first.provenance["files"] == {"pydoc_data.topics": short.sha256}
    assert first.provenance.keys() > built_in("pydoc").keys()


def test_unigram_baseline_is_computed_from_counts() -> None:
    """The unigram baseline has the accuracy and bits per byte of the training counts plus one."""
    train, hidden = b"aaab" * 63, np.array([97, 97, 98, 99])
    counted = text.unigram(train, hidden)
    assert counted["accuracy"] == 50
    counts = np.array([190, 190, 64, 1])  # each counted once too often; 252 + 256 in total
    assert counted["bits_per_byte"] == pytest.approx(-np.log2(counts / 508).mean())


def test_measures_count_masked_bytes_only(short: Corpus, tmp_path: Path) -> None:
    """For an untrained network both measures can be computed directly, position by position."""
    record, _ = run(replace(LANGUAGE, learning_rate=0.0, epochs=1), tmp_path)
    metrics = record.read().metrics[-1]
    torch.manual_seed(derive_seed(LANGUAGE.seed, INITIALISATION))
    model = sequential(networks.build(LANGUAGE, 256))
    ((inputs, targets),) = Evaluation(Text(short.test, 16, CPU), 512)
    logits = model(inputs).detach().double()
    right, bits = [], []
    for row, column in (targets != IGNORED).nonzero().tolist():
        of_byte, target = logits[row, column], int(targets[row, column])
        right.append(int(of_byte.argmax()) == target)
        bits.append(float((of_byte.logsumexp(0) - of_byte[target]) / np.log(2)))
    assert metrics["test_accuracy"] == 100 * np.mean(right)
    assert metrics["test_bits_per_byte"] == pytest.approx(np.mean(bits), rel=1e-6)


def test_missing_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data", None)
    with pytest.raises(DataError, match=r"this Python does not include it\. Use a complete Python"):
        corpus.pydoc.__wrapped__()


def test_stages_of_language_model_can_be_timed() -> None:
    """The stages of a language model can be timed, and the message size is that of two streams."""
    sizes = {"accumulation": 1, "batch_size": 2, "repetitions": 1}
    cell = StageCostCell(scale="custom", method="PETRA", seed=0, **LANGUAGE_NETWORK, **sizes)
    rows = stage_costs.time_stages(cell, CPU)
    assert json.loads(json.dumps(rows))[1]["invertible"]
    assert rows[0]["bytes_up"] == 2 * 2 * 16 * 6 * 4  # two streams of [2, 16, 6] float32
