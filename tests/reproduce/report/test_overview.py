"""Test the top of the page: the order of its parts, and the alerts in a few words."""

from dataclasses import replace

from reproduce.presentation.content import Finding, Role, Section
from reproduce.records.results import Results
from reproduce.report import overview
from tests.fake_records import benchmark

SECTIONS = [
    Section("provenance", "Provenance", []),
    Section("something new", "Something new", []),
    Section("stability", "Stability", []),
    Section("figure5", "Figure 5: gradients", [], [Finding("close to 1."), Finding("bad", Role.ALERT)]),
    Section("table2", "Table 2: accuracy", [], [Finding("low.", Role.ALERT)], "27 of 27 cells"),
]


def test_parts_are_paper_studies_and_provenance() -> None:
    """The sections are ordered: the paper's exhibits, further studies, provenance."""
    parts = {part.title: [section.key for section in part.sections] for part in overview.parts(SECTIONS)}
    assert list(parts.values()) == [["table2", "figure5"], ["something new", "stability"], ["provenance"]]
    assert list(parts)[1] == "Beyond the paper"


def test_attention_has_whole_sentences_and_no_benchmark_aims() -> None:
    """Alerts are whole sentences with the label of their section, and missed benchmark aims are left out."""
    missed = Section("benchmarks", "Benchmarks", [], [Finding("1 aim missed.", Role.ALERT)])
    in_order = [section for part in overview.parts([*SECTIONS, missed]) for section in part.sections]
    alerts = [(s.key, overview.label(s), overview.sentence(f)) for s, f in overview.attention(in_order)]
    assert alerts == [("table2", "Table 2", "low."), ("figure5", "Figure 5", "bad")]
    long = Finding(" ".join(map(str, range(40))) + ". More is folded.")
    assert overview.sentence(long).endswith(" 39."), "the first sentence, whole"


def test_date_is_that_of_the_newest_record() -> None:
    """The date of the page is that of the newest benchmark."""
    dated = [replace(benchmark(), date=date) for date in ("2025-01-02", "2025-11-03")]
    assert overview.newest(Results((), (), tuple(dated))) == "2025-11-03"
    assert overview.newest(Results((), ())) == ""
