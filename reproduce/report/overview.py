"""What stands on top of the page: the exhibits in their order, and a short list of what needs attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from reproduce import published
from reproduce.show.content import Finding, Section, Tone

__all__ = ["Chapter", "attention", "brief", "label", "parts"]

BRIEF = 14  # words
#: Sections that say where the others come from; whatever is neither here nor in the paper is a study.
GROUND = ("schedules", "benchmarks", "history", "provenance")


@dataclass(frozen=True)
class Chapter:
    """Sections under one heading."""

    title: str
    sections: Sequence[Section]


def parts(sections: Sequence[Section]) -> list[Chapter]:
    """The paper's exhibits in its order, the studies beyond it in theirs, then where everything comes from."""
    of_paper = [row["key"] for row in published.read("exhibits")]
    in_order = sorted(sections, key=lambda s: of_paper.index(s.key) if s.key in of_paper else len(of_paper))
    split = {
        "The paper's tables and figures": [s for s in in_order if s.key in of_paper],
        "Beyond the paper": [s for s in in_order if s.key not in of_paper and s.key not in GROUND],
        "Ground: schedules, benchmarks, provenance": [s for key in GROUND for s in in_order if s.key == key],
    }
    return [Chapter(title, members) for title, members in split.items() if members]


def attention(sections: Sequence[Section]) -> list[tuple[Section, Finding]]:
    """The findings that a reader must not miss."""
    return [(s, finding) for s in sections for finding in s.findings if finding.tone is Tone.ALERT]


def label(section: Section) -> str:
    """The section's name in a list: "Table 1", not what it is about."""
    return section.title.partition(":")[0]


def brief(section: Section, finding: Finding) -> str:
    """What a finding says in its first words, where its section's name stands before it."""
    words = finding.text.removeprefix(f"{label(section)}: ").split()
    short = " ".join(words[:BRIEF])
    return short.rstrip(".;:,") + (" …" if len(words) > BRIEF else "")
