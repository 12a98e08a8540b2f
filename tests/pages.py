"""Read a written page: a tree of its elements, its tables as rows of words, its downloads as files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br", "img", "hr", "input"}


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
    """Build the tree, and report elements that are closed in the wrong order."""

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


def table(tree: Element, key: str) -> Element:
    """Return the only table whose key begins with `key`."""
    tables = [e for e in tree.walk() if re.fullmatch(f"table-{key}(-[0-9a-f]{{6}})?", e.attributes.get("id", ""))]
    assert len(tables) == 1, key
    return tables[0]


def rows(table: Element) -> list[list[str]]:
    return [[cell.text.strip() for cell in row.children] for row in table.all("tr")]
