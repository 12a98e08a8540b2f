"""English of some 400 kB that comes with Python, in a part to train on and a part to validate on.

`pydoc_data.topics` holds the topics of the language reference, what `help("with")` shows. They quote one another, so
cutting them into a training and a validation text would put the same paragraphs into both; here every paragraph is kept
once, at its first place, and the last tenth is for validation.

The text is another one in every version of Python. Its SHA-256 goes into every result, a run does not go on with
another text, and tables never put results of two texts together.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from reproduce.data.errors import DataError

VALIDATION = 0.1  # of the text, at its end


class Corpus(NamedTuple):
    """A text in two parts, to train and from behind that to validate on, and the SHA-256 of the whole."""

    train: bytes
    test: bytes
    sha256: str


@cache
def pydoc() -> Corpus:
    """The text of this Python. Raises: DataError: this Python comes without it."""
    try:
        from pydoc_data import topics
    except ImportError as error:
        fix = "Take a complete Python, such as python.org's, or the package of your system that has pydoc"
        raise DataError(Path("pydoc_data", "topics.py"), "this Python comes without it", fix) from error
    return split(without_repetitions("\n\n".join(topics.topics.values())))


def without_repetitions(text: str) -> str:
    """The text with every paragraph once, at its first place; two that differ in white space are the same."""
    paragraphs: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        if words := paragraph.split():
            paragraphs.setdefault(" ".join(words), paragraph)
    return "\n\n".join(paragraphs.values())


def split(text: str) -> Corpus:
    """The bytes of a text, its last tenth for validation."""
    content = text.encode()
    cut = round(len(content) * (1 - VALIDATION))
    return Corpus(content[:cut], content[cut:], hashlib.sha256(content).hexdigest())
