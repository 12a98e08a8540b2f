"""Split about 400 kB of English text that Python includes into a training and a validation part.

`pydoc_data.topics` contains the topics of the language reference, which `help("with")` displays. The topics quote one
another, so a simple split would put the same paragraphs into both parts. Here only the first occurrence of each
paragraph is kept, and the last tenth of the text is used for validation.

The text differs between versions of Python. Its SHA-256 is part of every result, a run cannot be resumed with a
different text, and tables never combine results of different texts.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from reproduce.data.errors import DataError

VALIDATION = 0.1  # fraction of the text, at its end


class Corpus(NamedTuple):
    """A text, split into a training part and the validation part that follows it, with the SHA-256 of the whole."""

    train: bytes
    test: bytes
    sha256: str


@cache
def pydoc() -> Corpus:
    """Return the text of this Python installation.

    Raises:
        DataError: If this Python does not include the text.

    """
    try:
        from pydoc_data import topics
    except ImportError as error:
        fix = "Use a complete Python, such as python.org's, or install your system's package that contains pydoc"
        raise DataError(Path("pydoc_data", "topics.py"), "this Python does not include it", fix) from error
    return split(without_repetitions("\n\n".join(topics.topics.values())))


def without_repetitions(text: str) -> str:
    """Keep only the first occurrence of each paragraph. Paragraphs that differ only in white space are equal."""
    paragraphs: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        if words := paragraph.split():
            paragraphs.setdefault(" ".join(words), paragraph)
    return "\n\n".join(paragraphs.values())


def split(text: str) -> Corpus:
    """Encode a text and split off its last tenth for validation."""
    content = text.encode()
    cut = round(len(content) * (1 - VALIDATION))
    return Corpus(content[:cut], content[cut:], hashlib.sha256(content).hexdigest())
