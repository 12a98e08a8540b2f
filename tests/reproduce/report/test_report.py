"""The page: self-contained, accessible, the same for the same records, and true to them."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce import published
from reproduce.exhibits.accounts import STUDIES
from reproduce.grids.smoke import DIGITS_NETWORKS, digits_cell
from reproduce.records.record import Record
from reproduce.report import build
from reproduce.show.statistics import estimate, paired
from tests import fake_records
from tests.browser import LOOK, PAPER, PHONE, browse, browse_in_frame, needs_browser, reported, with_script
from tests.conftest import ROOT
from tests.pages import Element, downloads, parse, rows, table

CHAIN = next(name for name in DIGITS_NETWORKS if name.startswith("chain"))
RESOURCES = {"src", "srcset", "poster", "data", "action", "xlink:href"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    fake_records.write(root, networks=("revnet18", CHAIN), accumulations=(1, 4))
    damaged = Record.of(digits_cell("resnet18", methods.DSP), root)
    fake_records.train(damaged.cell, root, 95.0)  # type: ignore[arg-type]  # a training cell, as made above
    (damaged.path / "result.json").write_text('{"schema": 1, "iden')
    foreign = Record.of(digits_cell("resnet18", methods.PETRA), root)
    fake_records.train(foreign.cell, root, 95.0)  # type: ignore[arg-type]
    spoil(foreign, "schema", 99)
    newer = Record.of(digits_cell("resnet18", methods.BACKPROPAGATION), root)
    fake_records.train(newer.cell, root, 95.0)  # type: ignore[arg-type]
    spoil(newer, "cell", {**newer.cell.to_dict(), "kind": "telepathy"})
    older = Record.of(digits_cell("resnet18", methods.DELAYED_GRADIENTS), root)
    fake_records.train(older.cell, root, 95.0)  # type: ignore[arg-type]
    spoil(older, "cell", {name: value for name, value in older.cell.to_dict().items() if name != "momentum"})
    return root


def spoil(record: Record, name: str, value: object) -> None:
    """Give the configuration of a record another value, as another version of the suite may have written it."""
    config = record.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), name: value}))


@pytest.fixture(scope="module")
def page(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("reports") / "deeper" / "index.html"
    assert build(records, output) == output
    return output


@pytest.fixture(scope="module")
def tree(page: Path) -> Element:
    return parse(page)


def test_nothing_is_fetched_from_anywhere(page: Path, tree: Element) -> None:
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


def test_every_link_within_the_page_has_its_target(tree: Element) -> None:
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


def test_every_drawing_says_what_it_shows(tree: Element) -> None:
    drawings = tree.all("svg")
    assert len(drawings) >= 12 + 1 + 2 + 2  # schedules; all runs; curves; bytes and memory
    for drawing in drawings:
        assert drawing.attributes["role"] == "img"
        title, description = ([c for c in drawing.children if c.tag == tag] for tag in ("title", "desc"))
        assert len(title) == len(description) == 1
        assert len(title[0].text) > 5
        assert len(description[0].text) > 40
    for figure in tree.all("figure"):
        assert len(figure.all("figcaption")) == 1


def test_every_table_has_a_caption_heads_and_whole_rows(tree: Element) -> None:
    assert len(tree.all("table")) >= 10
    for found in tree.all("table"):
        assert len(found.all("caption")) == 1
        assert len(found.all("caption")[0].text.split()) >= 4
        columns = len([e for e in found.all("thead")[0].children[-1].children if e.attributes.get("scope") == "col"])
        for row in found.all("tr"):
            assert sum(int(cell.attributes.get("colspan", 1)) for cell in row.children) == columns
        for body in found.all("tbody"):
            for row in body.children:
                assert row.children[0].tag == "th"


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_in_every_process(records: Path, page: Path, tmp_path: Path) -> None:
    """In two other processes, handed damaged records too, with another order of sets and more than a second later."""
    again = tmp_path / "again.html"
    command = [sys.executable, "-m", "reproduce", "report", "--records", str(records), "--output", str(again)]
    command += ["--jobs", "2"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}, cwd=ROOT, stdout=subprocess.DEVNULL)
    assert again.read_bytes() == page.read_bytes()


def test_the_place_of_the_records_is_not_in_the_page(records: Path, page: Path) -> None:
    assert str(records) not in page.read_text()
    assert records.name + "/" not in page.read_text()


def test_accuracies_are_those_of_the_records(records: Path, tree: Element) -> None:
    def values(method: methods.Method) -> dict[int, float]:
        cells = {seed: digits_cell("revnet18", method, 4, seed) for seed in (0, 1)}
        results = {seed: Record.of(cell, records).result() for seed, cell in cells.items()}
        return {seed: result["test_accuracy"] for seed, result in results.items() if result}

    petra, reference = values(methods.PETRA), values(methods.BACKPROPAGATION)
    mean, difference = estimate(list(petra.values())), paired(petra, reference)
    assert mean.half_width is not None
    assert difference is not None
    found = rows(table(tree, "accuracy-smoke"))
    start = next(
        n for n, row in enumerate(found) if row == [f"RevNet-18, width {DIGITS_NETWORKS['revnet18']['width']}"]
    )
    row = next(row for row in found[start:] if row[0] == "PETRA")
    heads = next(row for row in found if row[0] == "method")
    assert heads == ["method", *["accuracy, %", "difference", "verdict"] * 3]
    shown = re.match(r"([\d.]+)\s±\s([\d.]+) \((\d)\)", row[4])
    assert shown is not None
    assert shown.groups() == (f"{mean.mean:.1f}", f"{mean.half_width:.1f}", "2")
    assert row[5].replace("\N{MINUS SIGN}", "-").split("\u202f")[0] in {
        f"{difference.mean:+.1f}",
        f"{difference.mean:.1f}",
    }
    assert row[6].removesuffix(" \N{DAGGER}") in {"agree", "differ", "cannot tell"}


def test_published_values_stand_with_their_marks(tree: Element) -> None:
    found = table(tree, "table2")
    cells = {text for row in rows(found) for text in row}
    for line in published.read("table2_accuracy"):
        assert line["top1_percent"] + line.mark.letter in cells
    marks = [element for element in tree.all("abbr") if "mark" in element.attributes["class"]]
    assert len(marks) > 60
    assert all(mark.attributes["title"] for mark in marks)


def test_every_exhibit_and_every_study_is_in_the_overview(tree: Element) -> None:
    lines = {row[0]: row for row in rows(table(tree, "coverage"))[2:]}
    assert list(lines) == [*(row["title"] for row in published.read("exhibits")), *(study.title for study in STUDIES)]
    assert lines["Table 4"][2].startswith("unknown; stated (second-hand)")
    assert lines["Table 4"][3] == "\N{EN DASH}"  # has no cells at the scale "smoke"
    assert re.fullmatch(r"0 of \d+", lines["Table 4"][5])
    assert "4 of 4 rows to the digit" in lines["Table 3"][6]
    # Two networks, six methods and k = 1 and 4 here, less the one that diverged, with seed 0, which is all of the grid.
    assert lines["Rivals"][3] == "23 of 30; 1 diverged"


def test_what_needs_attention_comes_first_and_the_rest_under_its_exhibit(tree: Element) -> None:
    summary = next(e for e in tree.walk() if e.attributes.get("id") == "summary")
    (alerts,) = (e for e in summary.all("ul") if e.attributes.get("class") == "findings")
    assert {item.attributes["class"] for item in alerts.children} == {"alert"}
    text = "\n".join(item.text for item in alerts.children)
    failed, begun = (digits_cell(CHAIN, methods.PETRA, 4, seed) for seed in (0, 1))
    assert f": 1 cell failed: diverged. {failed.name} (the loss of micro-batch 77 is nan)." in text
    assert [link.text for item in alerts.children for link in item.all("a")] == [
        "Accuracy of the methods",
        "Provenance",
        "Provenance",
    ]
    assert "4 records damaged or foreign" in text
    (others,) = (e for e in summary.all("dl") if e.attributes.get("class") == "findings")
    assert "alert" not in {item.attributes.get("class") for item in others.children}
    headings = [item.text for item in others.children if item.tag == "dt"]
    assert headings == sorted(set(headings), key=headings.index)
    assert headings[0] == "Table 1"
    assert f"1 cell begun and not finished. {begun.name}: 2 of {begun.epochs} epochs." in others.text
    order = ("What needs attention", "What has been run", "What came out", "What is here of each table")
    positions = [tree.text.index(words) for words in order]
    assert positions == sorted(positions)


def test_sections_stand_in_the_order_of_the_paper_and_the_contents_name_them_all(tree: Element) -> None:
    sections = [e.attributes["id"] for e in tree.all("section")]
    paper = [row["key"] for row in published.read("exhibits")]
    studies = [study.key for study in STUDIES]
    for order in (["summary", *paper], [*paper, *studies], [*studies, "schedules", "provenance"]):
        assert [key for key in sections if key in order] == [key for key in order if key in sections]
    assert sections[-3:] == ["provenance", "statistics", "citing"]
    links = [link.attributes["href"] for link in tree.all("nav")[0].all("a")]
    assert [link for link in links if not link.startswith("#part-")] == [f"#{key}" for key in sections]


def test_records_that_cannot_be_read_are_shown_and_not_counted(tree: Element) -> None:
    found = {row[0].split("/")[1]: row for row in rows(table(tree, "problems"))[1:]}
    by_method = {re.search(r"w\d+-(.+)-k", name)[1]: row for name, row in found.items()}  # type: ignore[index]
    assert {name: row[1] for name, row in by_method.items()} == {
        "dsp": "damaged",
        "petra": "foreign",
        "backpropagation": "foreign",
        "delayed-gradients": "foreign",
    }
    assert "result.json" in by_method["dsp"][0]
    assert "format 99" in by_method["petra"][2]
    assert "got 'telepathy'" in by_method["backpropagation"][2]
    assert "missing: momentum" in by_method["delayed-gradients"][2]


def test_provenance_names_code_machine_and_command_of_every_cell(tree: Element) -> None:
    found = rows(table(tree, "cells"))
    heads = found[0]
    cell = digits_cell("revnet18", methods.PETRA, 4, 1)
    by_name = {row[0]: dict(zip(heads, row, strict=True)) for row in found}
    row = by_name[cell.name]
    assert row["state"] == "done"
    assert row["code"] == "C2"
    assert row["environment"] == "E1"
    assert row["loader"] == "memory"
    assert row["command"].startswith("python -m reproduce train --dataset digits ")  # seed 1 is in no grid
    assert row["command"].endswith(" --seed 1")
    of_grid = digits_cell("revnet18", methods.PETRA, 4, 0).name
    assert by_name[of_grid]["command"] == f"python -m reproduce run smoke --only name={of_grid}"
    assert "A Processor with <angle> brackets" in table(tree, "environments").text
    listing = next(e for e in tree.walk() if e.attributes.get("id") == "listing-patch-C2")
    assert fake_records.PATCH.strip() in listing.text


def test_downloads_hold_what_is_shown(records: Path, tree: Element) -> None:
    files = downloads(tree)
    for found in tree.walk():
        if found.attributes.get("id", "").startswith("table-"):
            assert f"{found.attributes['id'].removeprefix('table-')}.csv" in files
    runs = list(
        csv.DictReader(
            io.StringIO(files[table(tree, "accuracy-smoke").attributes["id"].removeprefix("table-") + ".csv"].decode())
        )
    )
    cell = digits_cell(CHAIN, methods.DSP, 1, 1)
    line = next(run for run in runs if run["cell"] == cell.name)
    result = Record.of(cell, records).result()
    assert result is not None
    assert float(line["test_accuracy"]) == result["test_accuracy"]
    assert (line["method"], line["k"], line["seed"], line["state"]) == ("DSP", "1", "1", "done")
    drawings = {name.removesuffix(".svg"): file for name, file in files.items() if name.endswith(".svg")}
    assert len(drawings) == len(tree.all("svg"))
    for file in drawings.values():
        assert ElementTree.fromstring(file).tag.endswith("svg")


def test_without_its_script_the_page_hides_nothing(tree: Element) -> None:
    for element in tree.walk():
        assert "hidden" not in element.attributes
        assert "display" not in element.attributes.get("style", "")
        assert "off-" not in element.attributes.get("class", "")


def test_scales_and_recipes_are_never_in_one_table(tmp_path: Path) -> None:
    root = tmp_path / "records"
    smoke = digits_cell("revnet18")
    for accuracy, cell in {
        91.0: smoke,
        92.0: replace(smoke, scale="custom"),
        93.0: replace(smoke, scale="custom", epochs=smoke.epochs + 1),
        94.0: replace(smoke, scale="custom", learning_rate=2 * smoke.learning_rate),
    }.items():
        fake_records.train(cell, root, accuracy)
    tree = parse(build(root, tmp_path / "index.html"))
    tables = [e.text for e in tree.walk() if e.attributes.get("id", "").startswith("table-accuracy-")]
    shown = [[v for v in ("91.0", "92.0", "93.0", "94.0") if v in text] for text in tables]
    assert sorted(shown) == [["91.0"], ["92.0"], ["93.0"], ["94.0"]]
    for text, (value,) in zip(tables, shown, strict=True):
        assert f"scale “{'smoke' if value == '91.0' else 'custom'}”" in text


@pytest.mark.parametrize("exists", [True, False])
def test_without_records_the_page_says_so(tmp_path: Path, exists: bool) -> None:
    root = tmp_path / "records"
    if exists:
        root.mkdir()
    tree = parse(build(root, tmp_path / "index.html"))
    assert "There are no records yet" in tree.text
    assert "No network has been trained yet." in tree.text
    assert "44.45" in table(tree, "table3").text  # what needs no records is there


@needs_browser
def test_a_real_browser_sorts_and_switches_without_errors_and_fetches_nothing(page: Path, tmp_path: Path) -> None:
    probed = with_script(page, tmp_path / "probed.html", LOOK)
    report = reported(browse(tmp_path, probed.as_uri(), "--window-size=1280,900", "--dump-dom"))
    assert report["wide"] == []  # nothing sticks out: what is wide scrolls in its own box
    assert report["before"] == ["4.94", "4.75", "2.36", "2.17"]
    assert report["rising"] == ["2.17", "2.36", "4.75", "4.94"]
    assert report["falling"] == ["4.94", "4.75", "2.36", "2.17"]
    assert report["all"] == report["again"] == ["k = 1", "k = 4", "k = 32"]
    assert report["four"] == ["k = 4"]
    assert report["cells"] == 1 + 3  # the method, and what stands under k = 4
    assert report["linked"] == "?k=4"
    assert report["pressed"] == ["4", "all"]
    assert report["cleared"] == ""
    assert report["drawings"] > 12
    assert report["fetched"] == []


@needs_browser
def test_on_a_phone_the_page_is_as_wide_as_the_screen_and_a_link_keeps_what_was_chosen(
    page: Path, tmp_path: Path
) -> None:
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
def test_it_prints(page: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.pdf"
    browse(tmp_path, page.as_uri(), f"--print-to-pdf={file}", "--no-pdf-header-footer")
    printed = file.read_bytes()
    assert printed.startswith(b"%PDF-")
    boxes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed))
    assert {(round(float(width)), round(float(height))) for width, height in boxes} == {(595, 842)}  # A4
    assert 8 < len(re.findall(rb"/Type /Page\b", printed)) < 60


@needs_browser
def test_no_table_is_wider_than_the_paper(page: Path, tmp_path: Path) -> None:
    """A browser that prints makes the whole page smaller until the widest table fits: once to half its size."""
    inner = with_script(page, tmp_path / "inner.html", PAPER)
    inner.write_text(inner.read_text().replace("@media print", "@media all"))
    report = browse_in_frame(tmp_path, "inner.html", 688)  # A4 less its margins
    assert report["width"] == 688
    assert report["tables"] == []
    assert report["cut"] > 0
