"""Test the page: self-contained, accessible, deterministic, and equal to the records."""

import base64
import csv
import hashlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce import published
from reproduce.exhibits import accuracy
from reproduce.exhibits._exhibit import all_exhibits
from reproduce.exhibits.claims import judge
from reproduce.grids import recipes
from reproduce.presentation.content import Section
from reproduce.records.frames import Frames
from reproduce.records.record import Record
from reproduce.records.results import read
from reproduce.report import build, sections
from tests import fake_records
from tests.browser import FOLDED, LOOK, PHONE, browse, browse_in_frame, needs_browser, reported, with_script
from tests.pages import Element, parse, rows, table
from tests.processes import Start, reproduce
from tests.sections import made, tables

CHAIN = "chain8"
RESOURCES = {"src", "srcset", "poster", "data", "action", "xlink:href"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    fake_records.write(root)
    fake_records.train(recipes.cell("small", "revnet18", methods.PETRA, 1), root, 60.0)
    damaged = Record.for_cell(recipes.cell("smoke", "resnet18", methods.DSP), root)
    fake_records.train(damaged.cell, root, 95.0)  # type: ignore[arg-type]  # a training cell, as made above
    (fake_records.in_folder(damaged).path / "result.json").write_text('{"schema": 1, "iden')
    foreign = Record.for_cell(recipes.cell("smoke", "resnet18", methods.PETRA), root)
    fake_records.train(foreign.cell, root, 95.0)
    config = fake_records.in_folder(foreign).path / "config.json"  # as another version of the suite may write it
    config.write_text(json.dumps({**json.loads(config.read_text()), "schema": 99}))
    return root


@pytest.fixture(scope="module")
def page(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("reports") / "deeper" / "index.html"
    assert build(records, output) == output
    return output


@pytest.fixture(scope="module")
def tree(page: Path) -> Element:
    return parse(page)


def test_page_is_self_contained_without_record_paths(records: Path, page: Path, tree: Element) -> None:
    """The page loads no external resource, and does not contain the path of the records."""
    for element in tree.walk():
        for name in RESOURCES & element.attributes.keys():
            assert element.attributes[name].startswith(("data:", "#")), element
        if element.tag == "link":
            assert element.attributes["href"].startswith("data:")
        if element.tag == "a":
            assert element.attributes["href"].startswith(("data:", "#")), element.attributes
        assert element.tag not in {"iframe", "object", "embed", "base"}
    styles = "".join(element.text for element in tree.all("style")) + "".join(
        element.attributes.get("style", "") for element in tree.walk()
    )
    assert "@import" not in styles
    assert re.findall(r"url\((?!#|[\"']?data:)", styles) == []
    assert "fetch(" not in page.read_text()
    assert str(records) not in page.read_text()


def test_internal_links_resolve_and_nothing_needs_scripts(tree: Element) -> None:
    """Every link within the page has a target, ids are unique, and no content is hidden without the script."""
    ids = Counter(element.attributes["id"] for element in tree.walk() if "id" in element.attributes)
    assert [name for name, times in ids.items() if times > 1] == []
    for element in tree.walk():
        for name in ("href", "xlink:href"):
            target = element.attributes.get(name, "")
            if target.startswith("#"):
                assert target[1:] in ids, target
        for name in ("aria-labelledby", "clip-path"):
            for target in re.findall(r"[\w-]+", element.attributes.get(name, "").replace("url", "")):
                assert target in ids, target
        assert "hidden" not in element.attributes
        assert "display" not in element.attributes.get("style", "")
        assert "off-" not in element.attributes.get("class", "")


def test_every_drawing_has_title_and_description(tree: Element) -> None:
    """Every drawing has the role img, a title and a description, and every figure a caption."""
    drawings = [e for e in tree.all("svg") if e.attributes.get("aria-hidden") != "true"]  # a card's is a thumbnail
    assert len(drawings) >= 5 + 1 + 2 + 2  # schedules; all runs; curves; bytes and memory
    for drawing in drawings:
        assert drawing.attributes["role"] == "img"
        title, description = ([c for c in drawing.children if c.tag == tag] for tag in ("title", "desc"))
        assert len(title) == len(description) == 1
        assert len(title[0].text) > 5
        assert len(description[0].text) > 40
    for figure in tree.all("figure"):
        assert len(figure.all("figcaption")) == 1


def test_every_table_has_caption_heads_and_marks(tree: Element) -> None:
    """Every table has a caption, heads and complete rows, and published values have marks with titles."""
    assert len(tree.all("table")) >= 10
    for rendered in tree.all("table"):
        assert len(rendered.all("caption")) == 1
        assert len(rendered.all("caption")[0].text.split()) >= 4
        columns = len([e for e in rendered.all("thead")[0].children[-1].children if e.attributes.get("scope") == "col"])
        for row in rendered.all("tr"):
            assert sum(int(cell.attributes.get("colspan", 1)) for cell in row.children) == columns
        for body in rendered.all("tbody"):
            for row in body.children:
                assert row.children[0].tag == "th"
    cells = {text for row in rows(table(tree, "table2")) for text in row}
    for line in published.read("table2_accuracy"):
        assert line["top1_percent"] + line.mark.letter in cells
    marks = [element for element in tree.all("abbr") if "mark" in element.attributes["class"]]
    assert len(marks) > 60
    assert all(mark.attributes["title"] for mark in marks)


@pytest.mark.slow
def test_report_bytes_are_deterministic_across_processes(
    records: Path, page: Path, tmp_path: Path, start: Start
) -> None:
    """Build the report of damaged records again in another process, which has another order of sets."""
    again = tmp_path / "again.html"
    start(reproduce, "report", "--records", str(records), "--output", str(again)).stderr()
    assert again.read_bytes() == page.read_bytes()


def test_page_contains_every_entry_of_a_table(records: Path, tree: Element) -> None:
    """The page contains all rows of a table under their headings, as the exhibit makes them from the records."""
    key = "accuracy-smoke-digits"
    (accuracies,) = (t for t in tables(made(accuracy.EXHIBIT, records)) if t.key.startswith(key))
    expected = [
        line
        for heading, body in accuracies.bodies()
        for line in ([heading], *([entry.text for entry in row] for row in body))
    ]
    (_, heads, *listed) = rows(table(tree, key))
    assert heads == ["method", *["accuracy, %", "difference", "verdict"] * 3]
    assert listed == expected


def cards(tree: Element) -> dict[str, Element]:
    """Return the cards of the board, by the section that they link to."""
    each = [e for e in tree.walk() if e.attributes.get("class") == "card"]
    return {card.all("a")[0].attributes["href"].removeprefix("#"): card for card in each}


def test_every_exhibit_has_a_card(tree: Element) -> None:
    """Every exhibit has a card, in the order of the sections."""
    sections = [e.attributes["id"] for e in tree.all("section")]
    assert list(cards(tree)) == sections[:-2]
    assert sections[-2:] == ["statistics", "citing"]
    paper = [row["key"] for row in published.read("exhibits")]
    assert sections[: 1 + len(paper)] == ["primary", *paper]
    assert "not comparable yet" in cards(tree)["table4"].text


def test_meaning_of_verdicts_is_explained(tree: Element) -> None:
    """The page explains the verdicts."""
    text = " ".join(tree.all("main")[0].text.split())
    assert "Only the primary comparisons are corrected" in text
    assert "\N{DAGGER}" not in text
    assert "length and recipe" not in text, "Training length has runs of all lengths in one table"


def test_every_claim_has_a_linkable_row_with_verdict(records: Path, tree: Element) -> None:
    """Every claim has a row with its sentence and verdict."""
    by_id = {e.attributes["id"]: e for e in tree.walk() if e.attributes.get("id", "").startswith("claim-")}
    judgements = judge(Frames(read(records)))
    assert list(by_id) == [f"claim-{judged.claim.key}" for judged in judgements]
    for judged in judgements:
        row = by_id[f"claim-{judged.claim.key}"]
        assert judged.claim.sentence.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}") in row.text.replace(
            "\N{NO-BREAK SPACE}", " "
        )
        assert row.children[-1].text.strip() == judged.verdict.value
        assert row.all("a")[0].attributes["href"] == f"#claim-{judged.claim.key}"
    listed = [e for e in tree.walk() if e.attributes.get("class") == "of-section"]
    assert {e.all("li")[0].all("a")[0].attributes["href"] for e in listed} <= {f"#{name}" for name in by_id}


def test_alerts_are_a_list_of_linked_sentences(tree: Element) -> None:
    """Alerts are whole sentences with links, and unfinished cells are listed under provenance."""
    (alerts,) = (e for e in tree.all("ul") if e.attributes.get("class") == "attention")
    text = "\n".join(item.text for item in alerts.children)
    failed = recipes.cell("smoke", CHAIN, methods.PETRA, 4, 0)
    assert f"1 cell failed: diverged. {failed.name}" in text
    assert "2 records damaged or foreign" in text
    for item in alerts.children:
        assert not item.text.strip().endswith("…"), "whole sentences"
        assert item.all("a")[0].attributes["href"].startswith("#")
    begun = recipes.cell("smoke", CHAIN, methods.PETRA, 4, 1)
    folded = next(e for e in tree.walk() if e.attributes.get("id") == "provenance")
    assert f"1 cell begun and not finished. {begun.name}: 2 of {begun.epochs} epochs." in folded.text


def test_provenance_lists_cells_machines_and_unreadable_records(tree: Element) -> None:
    """Provenance lists state, code, machine and command of every cell, and unreadable records."""
    heads, *cells = rows(table(tree, "cells"))
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in cells}
    row = by_name[recipes.cell("smoke", "revnet18", methods.PETRA, 4, 1).name]
    assert (row["state"], row["code"], row["environment"]) == ("done", "C2", "E1")
    other = "other command"
    assert row[other].startswith("python -m reproduce train --model revnet18 ")  # seed 1 is in no grid
    of_grid = recipes.cell("smoke", "revnet18", methods.PETRA, 4, 0).name
    assert by_name[of_grid][other] == ""
    assert "python -m reproduce run SCALE --only name=CELL" in table(tree, "cells").text
    assert "A Processor with <angle> brackets" in table(tree, "environments").text
    listing = next(e for e in tree.walk() if e.attributes.get("id") == "listing-patch-C2")
    assert fake_records.PATCH.strip() in listing.text
    section = next(e for e in tree.walk() if e.attributes.get("id") == "provenance")
    (text,) = (item.text for item in section.all("li") if "damaged or foreign" in item.text)
    assert text.count("result.json") == 1
    assert "format 99" in text


def test_page_without_records_states_it(tmp_path: Path) -> None:
    """Without records, the page states that there are none and contains the published values."""
    tree = parse(build(tmp_path / "records", tmp_path / "index.html"))
    assert "There are no records yet" in tree.text
    assert "Not run at the scale “paper”" in tree.text
    assert "44.45" in table(tree, "table3").text  # values that need no records


@needs_browser
def test_browser_sorts_filters_and_saves_without_fetching(page: Path, tree: Element, tmp_path: Path) -> None:
    """In a browser, sorting, filtering and saving work without errors, and nothing is fetched."""
    probed = with_script(page, tmp_path / "probed.html", LOOK)
    report = reported(browse(tmp_path, probed.as_uri(), "--window-size=1280,900", "--dump-dom"))
    assert report["wide"] == []  # nothing overflows: wide content scrolls in a box
    assert report["before"] == report["falling"] == ["44.45", "43.58", "21.20", "20.33"]
    assert report["rising"] == report["before"][::-1]
    assert report["all"] == report["again"] == ["k = 1", "k = 4", "k = 32"]
    assert report["four"] == ["k = 4"]
    assert report["cells"] == 1 + 3  # the method, and the columns under k = 4
    assert (report["linked"], report["cleared"]) == ("?k=4", "")
    assert report["pressed"] == ["4", "all"]
    assert report["drawings"] > 12
    assert report["fetched"] == []
    lines = list(csv.reader(io.StringIO(report["csv"])))
    assert lines[0][:3] == ["heading", "method", "k = 1 accuracy, %"]
    assert len(lines) == 1 + sum(len(row) > 1 for row in rows(table(tree, "accuracy-smoke-digits"))[2:])
    assert float(lines[1][2]) > 0  # in full precision, without the interval in the displayed text
    assert ElementTree.fromstring(report["svg"]).tag.endswith("svg")


@needs_browser
def test_phone_layout_fits_the_screen_and_links_keep_filters(page: Path, tmp_path: Path) -> None:
    """On a narrow screen nothing overflows, and a link keeps the chosen filters."""
    with_script(page, tmp_path / "inner.html", PHONE)
    report = browse_in_frame(tmp_path, "inner.html?k=32&scale=smoke#table1", 390)
    assert report["width"] == 390
    assert report["wide"] == []
    assert report["page"] == report["screen"] <= 390
    assert report["pressed"] == ["32", "smoke"]
    assert report["groups"] == ["k = 32"]
    assert report["scales"] == ["smoke"]
    assert all(words == "Nothing here with k = 32, only with k = 1." for words in report["said"])
    assert report["said"]


@needs_browser
def test_dark_mode_and_printing_lose_nothing(page: Path, tmp_path: Path) -> None:
    """Use light ink on a dark page, and print folded content except for records, patches and commands."""
    dark = with_script(page, tmp_path / "dark.html", "report.ink = getComputedStyle(document.body).color;")
    dark.write_text(dark.read_text().replace("prefers-color-scheme: dark", "min-width: 1px"))
    assert reported(browse(tmp_path, dark.as_uri(), "--dump-dom"))["ink"] == "rgb(232, 230, 225)"
    printed = with_script(page, tmp_path / "printed.html", FOLDED)
    printed.write_text(printed.read_text().replace("@media print", "@media all"))
    assert reported(browse(tmp_path, printed.as_uri(), "--dump-dom"))["hidden"] == 0
    browse(tmp_path, page.as_uri(), f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    boxes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf))
    assert {(round(float(width)), round(float(height))) for width, height in boxes} == {(595, 842)}  # A4
    assert 8 < len(re.findall(rb"/Type /Page\b", pdf)) <= 40


def test_failing_section_is_reported_and_others_are_made(
    tmp_path: Path, records: Path, tree: Element, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A section that fails is replaced by its error, and all other sections are made.

    They are empty here, since drawing them takes long.
    """
    assert sections.FAILED not in tree.text

    def fail(exhibit: Any, frames: Any) -> Section:
        if exhibit.key == "table1":
            raise OverflowError("int too large")
        return Section(exhibit.key, exhibit.title, ["stand-in"])

    monkeypatch.setattr(sections, "section", fail)
    page = parse(build(records, tmp_path / "index.html"))
    text = page.text
    words = "This section could not be made: OverflowError: 'int too large'"
    assert text.count(words) >= 2, "in its place, and as a finding"
    assert "Traceback" in capsys.readouterr().err
    assert len(page.all("section")) == len(tree.all("section"))
    assert text.count("stand-in") == len(all_exhibits()) - 1


def test_only_the_script_of_the_page_may_run(page: Path) -> None:
    """The content security policy allows only the hash of the script in the page."""
    html = page.read_text("utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = re.findall(r'content="(default-src [^"]+)"', html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
