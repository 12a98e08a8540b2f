"""Test the citations of the paper and the suite in the report and in CITATION.cff (Citation File Format 1.2.0)."""

import re
from pathlib import Path

from petra_core import methods
from reproduce import published
from reproduce.grids import recipes
from reproduce.records.results import read
from reproduce.report import citing
from tests import fake_records
from tests.conftest import ROOT

CFF = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
COMMIT = fake_records.CLEAN["commit"]
REQUIRED = {"cff-version", "message", "title", "authors"}
KNOWN = REQUIRED | {"abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license"}
KNOWN |= {"license-url", "preferred-citation", "references", "repository", "repository-artifact", "repository-code"}
KNOWN |= {"type", "url", "version"}


def test_report_cites_commits_of_finished_cells(tmp_path: Path) -> None:
    """The citation lists the commits of finished cells, most frequent first, or a placeholder."""
    other = {**fake_records.DIRTY, "commit": "f" * 40}
    fake_records.train(recipes.cell("smoke", seed=0), tmp_path, 90.0, code=other, patch="x\n")
    for seed in (1, 2):
        fake_records.train(recipes.cell("smoke", seed=seed), tmp_path, 90.0)
    fake_records.train(
        recipes.cell("smoke", seed=3), tmp_path, 90.0, epochs=1, code={**fake_records.CLEAN, "commit": "0" * 40}
    )
    text = citing.entries(read(tmp_path))
    assert f"version = {{{{0.1.0, commit {COMMIT}; 0.1.0, commit {'f' * 40} with changes}}}}" in text
    assert "rivaud2025petra" in text
    assert text.count("{") == text.count("}")
    unknown = {"version": "0.1.0", "commit": None, "note": "not a checkout"}
    fake_records.train(recipes.cell("smoke", "chain8", methods.DSP), tmp_path / "unknown", 90.0, code=unknown)
    assert "version = {{the commit that you used}}" in citing.entries(read(tmp_path / "unknown"))


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
