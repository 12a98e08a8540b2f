"""Arrange the top of the page: the exhibits in their order, and the alerts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reproduce import published
from reproduce.presentation.content import Finding, Role, Section
from reproduce.records.results import Results

FIRST = "primary"  # key of the section that comes before all others
#: Sections on which the others are based. Sections that are neither here nor in the paper are studies.
GROUND = ("cost", "schedules", "benchmarks", "provenance")


@dataclass(frozen=True)
class Chapter:
    """Sections under one heading."""

    title: str
    sections: Sequence[Section]


def parts(sections: Sequence[Section]) -> list[Chapter]:
    """Return the chapters: primary comparisons, the paper's exhibits in its order, further studies, then the ground."""
    of_paper = [row["key"] for row in published.read("exhibits")]
    in_order = sorted(sections, key=lambda s: of_paper.index(s.key) if s.key in of_paper else len(of_paper))
    split = {
        "What the report rests on": [s for s in in_order if s.key == FIRST],
        "The paper's tables and figures": [s for s in in_order if s.key in of_paper],
        "Beyond the paper": [s for s in in_order if s.key not in (*of_paper, *GROUND, FIRST)],
        "Ground: schedules, benchmarks, provenance": [s for key in GROUND for s in in_order if s.key == key],
    }
    return [Chapter(title, members) for title, members in split.items() if members]


def attention(sections: Sequence[Section]) -> list[tuple[Section, Finding]]:
    """Return the findings that a reader must not miss.

    Unreadable benchmarks concern only developers of the suite, so they appear only with the benchmarks.
    """
    for_readers = [s for s in sections if s.key != "benchmarks"]
    return [(s, finding) for s in for_readers for finding in s.findings if finding.role is Role.ALERT]


def label(section: Section) -> str:
    """Return the section's name in a list: "Table 1", without its subject."""
    return section.title.partition(":")[0]


def sentence(finding: Finding) -> str:
    """Return the first sentence of a finding."""
    return re.split(r"(?<=\S\.) (?=[A-Z\d])", finding.text, maxsplit=1)[0]


def newest(results: Results) -> str:
    """Return the day of the newest record that has a date, as YYYY-MM-DD; empty if none has one.

    Cells have no dates, so that they are the same wherever they run. Benchmarks have dates.
    """
    return max((benchmark.date for benchmark in results.benchmarks), default="")
