"""What stands on top: parts in order, what needs attention in a few words."""

from reproduce.report import overview
from reproduce.show.content import Finding, Section, Tone

SECTIONS = [
    Section("provenance", "Provenance", []),
    Section("something new", "Something new", []),
    Section("stability", "Stability", []),
    Section("figure5", "Figure 5: gradients", [], [Finding("Figure 5: close to 1."), Finding("bad", Tone.ALERT)]),
    Section("table2", "Table 2: accuracy", [], [Finding("Table 2: low.", Tone.ALERT)], "27 of 27 cells"),
]


def test_the_paper_comes_first_then_studies_then_where_it_comes_from() -> None:
    parts = {part.title: [section.key for section in part.sections] for part in overview.parts(SECTIONS)}
    assert list(parts.values()) == [["table2", "figure5"], ["something new", "stability"], ["provenance"]]
    assert list(parts)[1] == "Beyond the paper"


def test_a_reader_gets_whole_sentences_and_no_aims_of_benchmarks() -> None:
    missed = Section("benchmarks", "Benchmarks", [], [Finding("Benchmarks: 1 aim missed.", Tone.ALERT)])
    in_order = [section for part in overview.parts([*SECTIONS, missed]) for section in part.sections]
    alerts = [(s.key, overview.label(s), overview.sentence(s, f)) for s, f in overview.attention(in_order)]
    assert alerts == [("table2", "Table 2", "low."), ("figure5", "Figure 5", "bad")]
    long = Finding("Table 2: " + " ".join(map(str, range(40))) + ". More is folded.")
    assert overview.sentence(SECTIONS[-1], long).endswith(" 39."), "the first sentence, whole"
