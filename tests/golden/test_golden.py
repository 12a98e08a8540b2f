"""Test every entry of every exhibit on fixed records, as text."""

import pytest

from reproduce.records.record import scan
from tests.golden import dump


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(dump.texts(dump.chosen(tmp_path_factory.mktemp("records"))))


@pytest.mark.parametrize("key", [*(exhibit.key for exhibit in dump.SHOWN), dump.HEADLINES, dump.CLAIMS])
def test_exhibit_matches_golden_file(key: str, texts: dict[str, str]) -> None:
    """`python -m tests.golden.dump` rewrites the files if a difference is intended."""
    assert texts[key].splitlines() == (dump.HERE / f"{key}.txt").read_text().splitlines()


def test_every_exhibit_has_a_sentence(texts: dict[str, str]) -> None:
    """Sentences have no length limit. They need a verb, which no test can detect."""
    sentences = {key: text.splitlines()[1].removeprefix("sentence: ") for key, text in texts.items()}
    del sentences[dump.HEADLINES], sentences[dump.CLAIMS]
    assert [key for key, sentence in sentences.items() if len(sentence.split()) < 2] == []


def test_golden_records_are_unique_and_committed() -> None:
    """The more than 60 records of the golden files are unique and committed."""
    names = dump.names_of_records()
    assert len(names) == len(set(names)) > 60
    committed = {f"{run.cell.scale}/{run.cell.name}" for run in scan(dump.COMMITTED).records}
    assert all(name in committed or (dump.COMMITTED / name).is_file() for name in names)
