"""The page: self-contained, accessible, the same for the same records, and true to them."""

import base64
import csv
import html
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from petra_core import methods
from reproduce import published
from reproduce.records import Record
from reproduce.report import build
from reproduce.scales import DIGITS_NETWORKS, digits_cell
from reproduce.statistics import estimate, paired
from tests import fake_records

CHAIN = next(name for name in DIGITS_NETWORKS if name.startswith("chain"))
VOID = {"meta", "link", "br", "img", "hr", "input"}
RESOURCES = {"src", "srcset", "poster", "data", "action", "xlink:href"}


@dataclass
class Element:
    """A node of the page, with all text below it."""

    tag: str
    attributes: dict[str, str]
    parent: "Element | None"
    children: "list[Element]" = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def walk(self) -> "Iterator[Element]":
        yield self
        for child in self.children:
            yield from child.walk()

    def all(self, tag: str) -> "list[Element]":
        return [element for element in self.walk() if element.tag == tag]

    @property
    def text(self) -> str:
        return "".join("".join(element.texts) for element in self.walk())


class Parser(HTMLParser):
    """Builds the tree, and notes what is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root", {}, None)
        self.here = self.root
        self.errors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.children.append(element)
        if tag not in VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here.children.append(Element(tag, {name: value or "" for name, value in attrs}, self.here))

    def handle_endtag(self, tag: str) -> None:
        if self.here.tag != tag:
            self.errors.append(f"</{tag}> closes <{self.here.tag}> at {self.getpos()}")
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.texts.append(data)


def parse(file: Path) -> Element:
    parser = Parser()
    parser.feed(file.read_text(encoding="utf-8"))
    assert parser.errors == []
    assert parser.here is parser.root
    return parser.root


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    fake_records.write(root, networks=("revnet18", CHAIN), accumulations=(1, 4))
    damaged = Record.of(digits_cell("resnet18", methods.DSP), root)
    fake_records.train(damaged.cell, root, 95.0)  # type: ignore[arg-type]  # a training cell, as made above
    (damaged.path / "result.json").write_text('{"schema": 1, "iden')
    foreign = Record.of(digits_cell("resnet18", methods.PETRA), root)
    fake_records.train(foreign.cell, root, 95.0)  # type: ignore[arg-type]
    config = foreign.path / "config.json"
    config.write_text(config.read_text().replace('"schema": 1', '"schema": 99'))
    return root


@pytest.fixture(scope="module")
def page(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("reports") / "deeper" / "index.html"
    assert build(records, output) == output
    return output


@pytest.fixture(scope="module")
def tree(page: Path) -> Element:
    return parse(page)


def table(tree: Element, key: str) -> Element:
    """The one table whose key begins so."""
    found = [e for e in tree.walk() if re.fullmatch(f"table-{key}(-[0-9a-f]{{6}})?", e.attributes.get("id", ""))]
    assert len(found) == 1, key
    return found[0]


def rows(table: Element) -> list[list[str]]:
    return [[cell.text.strip() for cell in row.children] for row in table.all("tr")]


def downloads(tree: Element) -> dict[str, str]:
    found = {}
    for link in tree.all("a"):
        if "download" in link.attributes:
            kind, _, data = link.attributes["href"].partition(",")
            text = base64.b64decode(data).decode() if kind.endswith("base64") else unquote(data)
            found[link.attributes["download"]] = text
    return found


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


def test_the_same_records_give_the_same_bytes(records: Path, page: Path, tmp_path: Path) -> None:
    assert build(records, tmp_path / "again.html").read_bytes() == page.read_bytes()


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
    assert row[6] in {"agree", "differ", "cannot tell"}


def test_published_values_stand_with_their_marks(tree: Element) -> None:
    found = table(tree, "table2")
    cells = {text for row in rows(found) for text in row}
    for line in published.read("table2_accuracy"):
        assert line["top1_percent"] + line.mark.letter in cells
    marks = [element for element in tree.all("abbr") if "mark" in element.attributes["class"]]
    assert len(marks) > 60
    assert all(mark.attributes["title"] for mark in marks)


def test_every_exhibit_of_the_paper_is_in_the_overview(tree: Element) -> None:
    overview = next(e for e in tree.walk() if e.attributes.get("id") == "coverage")
    lines = {row[0]: row for row in rows(overview)[1:]}
    assert list(lines) == [row["title"] for row in published.read("exhibits")]
    assert lines["Table 4"][2].startswith("unknown; stated (second-hand)")
    assert lines["Table 4"][3] == "not run"
    assert "4 of 4 rows to the digit" in lines["Table 3"][3]


def findings(tree: Element) -> list[tuple[str, str]]:
    listed = next(e for e in tree.all("ul") if e.attributes.get("class") == "findings")
    return [(item.attributes["class"], item.text) for item in listed.children]


def test_summary_begins_with_what_is_wrong(tree: Element) -> None:
    found = findings(tree)
    tones = [tone for tone, _ in found]
    alerts = tones.count("alert")
    assert alerts >= 3
    assert tones[:alerts] == ["alert"] * alerts
    text = "\n".join(words for _, words in found)
    failed, begun = (digits_cell(CHAIN, methods.PETRA, 4, seed) for seed in (0, 1))
    assert f"1 cell failed. {failed.name}: diverged (epoch 2 of {failed.epochs})." in text
    assert f"1 cell begun and not finished. {begun.name}: 2 of {begun.epochs} epochs." in text
    assert "2 records damaged or foreign" in text
    assert "Scale “smoke”" in text


def test_records_that_cannot_be_read_are_shown_and_not_counted(tree: Element) -> None:
    found = rows(table(tree, "problems"))
    assert [row[1] for row in found[1:]] == ["damaged", "foreign"]
    assert "result.json" in found[1][0]
    assert "format 99" in found[2][2]


def test_provenance_names_code_machine_and_command_of_every_cell(tree: Element) -> None:
    found = rows(table(tree, "cells"))
    heads = found[0]
    cell = digits_cell("revnet18", methods.PETRA, 4, 1)
    row = dict(zip(heads, next(row for row in found if row[0] == cell.name), strict=True))
    assert row["state"] == "done"
    assert row["code"] == "C2"
    assert row["environment"] == "E1"
    assert row["loader"] == "memory"
    assert "--only model=revnet18" in row["command"]
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
            io.StringIO(files[table(tree, "accuracy-smoke").attributes["id"].removeprefix("table-") + ".csv"])
        )
    )
    cell = digits_cell(CHAIN, methods.DSP, 1, 1)
    line = next(run for run in runs if run["cell"] == cell.name)
    result = Record.of(cell, records).result()
    assert result is not None
    assert float(line["test_accuracy"]) == result["test_accuracy"]
    assert (line["method"], line["k"], line["seed"], line["state"]) == ("DSP", "1", "1", "done")
    drawings = {name: text for name, text in files.items() if name.endswith(".svg")}
    assert len(drawings) == len(tree.all("svg"))
    for text in drawings.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")


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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_real_browser_shows_it_without_errors(page: Path, tmp_path: Path, width: int) -> None:
    """The page with a script at its end that sorts a table and reports what it sees into the document."""
    probe = """<script>
      const wide = [...document.querySelectorAll("main > section > *, .exhibit > *, figure > *")]
        .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
        .map((e) => e.className || e.tagName);
      const sorted = document.querySelector("#table-table3-depths table");
      const column = () => [...sorted.tBodies[0].rows].slice(1).map((row) => row.cells[2].textContent.trim());
      const before = column();
      const button = sorted.tHead.rows[1].cells[2].querySelector("button");
      button.click();
      const rising = column();
      button.click();
      const report = { wide, page: document.documentElement.scrollWidth, before, rising, falling: column(),
        titles: document.querySelectorAll("svg[role=img]").length };
      document.title = JSON.stringify(report);
    </script></body>"""
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", probe))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    command += ["--enable-logging=stderr", "--v=0", "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    seen = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert seen is not None
    report = json.loads(html.unescape(seen[1]))
    assert report["wide"] == []  # nothing sticks out: what is wide scrolls in its own box
    assert report["page"] <= max(width, 500)  # headless Chromium has no window narrower than 500
    assert report["before"] == ["4.94", "4.75", "2.36", "2.17"]
    assert report["rising"] == ["2.17", "2.36", "4.75", "4.94"]
    assert report["falling"] == ["4.94", "4.75", "2.36", "2.17"]
    assert report["titles"] > 12
