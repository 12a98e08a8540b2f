"""Test the text of every exhibit in made-up situations, and which of its sentences becomes its summary."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.messages import read
from tests.reproduce.exhibits.situations import FILE, names, text_of

TEXTS = read(FILE)


def test_every_text_is_used_by_its_name() -> None:
    sources = [file.read_text("utf-8") for file in (ROOT / "reproduce").rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"""text_of\(["'](\w+)["'], ["'](\w+)["']""", source)}
    texts = tomllib.loads((ROOT / "reproduce" / "exhibits" / "exhibits.toml").read_text("utf-8"))
    assert used == {(key, name) for key, of_key in texts.items() for name in of_key.get("texts", ())}


def test_every_situation_has_a_text() -> None:
    assert list(TEXTS) == names()


@pytest.mark.parametrize("name", TEXTS)
def test_exhibit_in_situation(name: str, tmp_path: Path) -> None:
    """`python -m tests.reproduce.exhibits.situations` rewrites the texts if a difference is intended."""
    names()
    assert text_of(name, tmp_path).splitlines() == TEXTS[name].splitlines()
