"""Test the citations of the paper and the suite in the report and in CITATION.cff (Citation File Format 1.2.0)."""

import re

from reproduce import published
from tests.conftest import ROOT

CFF = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
REQUIRED = {"cff-version", "message", "title", "authors"}
KNOWN = REQUIRED | {"abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license"}
KNOWN |= {"license-url", "preferred-citation", "references", "repository", "repository-artifact", "repository-code"}
KNOWN |= {"type", "url", "version"}


def test_citation_file_is_valid_and_matches_the_report() -> None:
    """CITATION.cff has the keys of its format, and the same title and authors as the report."""
    keys = re.findall(r"^([a-z-]+):", CFF, re.M)
    assert REQUIRED <= set(keys) <= KNOWN
    assert len(keys) == len(set(keys))
    # Every author of the suite is a person or a named entity. A reference also needs a type, a title and authors.
    (reference,) = re.findall(r"^references:\n((?:  .+\n)+)", CFF, re.M)
    assert {"type", "title", "authors"} <= set(re.findall(r"^  [- ] ([a-z-]+):", reference, re.M))
    assert f'title: "{published.PAPER_TITLE}"' in CFF
    people = list(zip(re.findall(r"family-names: (.+)", CFF), re.findall(r"given-names: (.+)", CFF), strict=True))
    named = re.search(r"author    = \{(.+?)\}", published.PAPER_CITATION, re.S)
    assert named is not None
    assert [", ".join(person) for person in people] == re.split(r"\s+and\s+", named[1])
    assert "arXiv:2406.02052" in CFF
    assert "year: 2025" in CFF
