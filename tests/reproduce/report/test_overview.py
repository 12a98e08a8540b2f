"""The first page: parts in order, findings where they belong, counts by scale, failures in words."""

from pathlib import Path

from petra_core import methods
from reproduce.grids import scales, small
from reproduce.grids.grid import grid_of
from reproduce.records.results import read
from reproduce.report import overview
from reproduce.show.content import Finding, Section, Table, Tone
from tests import fake_records

SECTIONS = [
    Section("provenance", "Provenance", []),
    Section("something new", "Something new", []),
    Section("stability", "Stability", []),
    Section("figure5", "Figure 5: gradients", [], [Finding("Figure 5: close to 1."), Finding("bad", Tone.ALERT)]),
    Section("table2", "Table 2: accuracy", [], [Finding("low", Tone.ALERT)], "27 of 27 cells"),
]


def lines(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [entry.text for entry in row] for row in table.rows}


def test_the_paper_comes_first_then_studies_then_where_it_comes_from() -> None:
    found = {part.title: [section.key for section in part.sections] for part in overview.parts(SECTIONS)}
    assert list(found.values()) == [["table2", "figure5"], ["stability", "something new"], ["provenance"]]
    assert list(found)[1] == "Beyond the paper"


def test_alerts_stand_apart_with_the_section_that_they_belong_to() -> None:
    in_order = [section for part in overview.parts(SECTIONS) for section in part.sections]
    assert [(s.key, f.text) for s, f in overview.attention(in_order)] == [("table2", "low"), ("figure5", "bad")]
    ((section, (finding,)),) = overview.other_findings(in_order)
    assert overview.label(section) == "Figure 5"
    assert overview.words(section, finding) == "Close to 1."


def test_every_scale_has_a_line_and_cells_by_hand_too(tmp_path: Path) -> None:
    fake_records.train(small.cell("revnet18", methods.PETRA, 1, 0), tmp_path, 60.0)
    fake_records.train(small.cell("revnet18", methods.PETRA, 1, 1), tmp_path, 60.0, epochs=1)
    fake_records.begin(small.cell("revnet18", methods.PETRA, 1, 2), tmp_path).fail("out of memory", "all is full")
    fake_records.train(small.cell("revnet18", methods.PETRA, 1, 0, scale="custom"), tmp_path, 60.0)
    results = read(tmp_path, grid_of("small").cells)
    found = lines(overview.scales_run(results))
    assert list(found) == [*scales.SCALES, "custom"]
    assert found["small"][2:] == [str(len(grid_of("small").cells)), "1", "0", "1", "1"]
    assert found["custom"][1:] == ["cells by hand", "1", "1", "0", "0", "0"]


def test_a_line_of_the_overview_says_what_is_here_and_leads_there(tmp_path: Path) -> None:
    fake_records.begin(small.cell("revnet18", methods.PETRA, 1, 0), tmp_path).fail("diverged", "nan")
    found = {row[0].text: row for row in overview.coverage(read(tmp_path), SECTIONS).rows}
    two, five, depth = found["Table 2"], found["Figure 5"], found["Depth and delay"]
    assert (two[0].anchor, two[6].text) == ("table2", "27 of 27 cells")
    assert two[4].text.endswith("; 1 diverged")
    assert two[4].text.startswith("0 of ")
    assert (five[0].anchor, five[6].text) == ("figure5", "see there")
    assert (depth[0].anchor, depth[6].text) == ("", "not run")
    assert depth[1].text.startswith("Asked: how do")
