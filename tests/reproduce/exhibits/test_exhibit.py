"""Test the text of every exhibit in made-up situations, and which of its sentences becomes its summary."""

from pathlib import Path

import pytest

from tests.messages import read
from tests.reproduce.exhibits.situations import FILE, names, text_of

TEXTS = read(FILE)


def test_every_situation_has_a_text() -> None:
    assert list(TEXTS) == names()


@pytest.mark.parametrize("name", TEXTS)
def test_exhibit_in_situation(name: str, tmp_path: Path) -> None:
    """`python -m tests.reproduce.exhibits.situations` rewrites the texts if a difference is intended."""
    names()
    assert text_of(name, tmp_path).splitlines() == TEXTS[name].splitlines()
