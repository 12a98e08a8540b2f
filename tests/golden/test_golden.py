"""Every entry of every exhibit on a fixed set of records, as text."""

import pytest

from reproduce.records.record import scan
from tests.golden import dump


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(dump.texts(dump.chosen(tmp_path_factory.mktemp("records"))))


@pytest.mark.parametrize("key", [*(exhibit.key for exhibit in dump.SHOWN), dump.HEADLINES])
def test_the_exhibit_says_what_it_said(key: str, texts: dict[str, str]) -> None:
    """`python -m tests.golden.dump` writes the files anew, where a difference is meant."""
    assert texts[key].splitlines() == (dump.HERE / f"{key}.txt").read_text().splitlines()


def test_every_sentence_is_short(texts: dict[str, str]) -> None:
    assert long_sentences(texts) == {}


@pytest.mark.slow
def test_every_sentence_of_the_report_is_short() -> None:
    assert long_sentences(dict(dump.texts(dump.COMMITTED))) == {}


def long_sentences(texts: dict[str, str]) -> dict[str, int]:
    """How many words they have, by exhibit; a mean with its interval is one."""
    sentences = {key: text.splitlines()[1].removeprefix("sentence: ") for key, text in texts.items()}
    del sentences[dump.HEADLINES]
    counts = {key: len(sentence.split(" ")) for key, sentence in sentences.items()}
    return {key: words for key, words in counts.items() if not 1 < words <= 25}


def test_records_are_those_of_the_report() -> None:
    names = dump.names_of_records()
    assert len(names) == len(set(names)) > 60
    committed = {f"{run.cell.scale}/{run.cell.name}" for run in scan(dump.COMMITTED).records}
    assert all(name in committed or (dump.COMMITTED / name).is_file() for name in names)
