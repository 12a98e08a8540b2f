"""From a folder of records to one HTML file that needs nothing else.

A report that fetches its style, its plots or its data from somewhere is dead when that place is. Everything is inside
here: style and script inline, drawings as SVG in the page, every table and drawing again as a `data:` link to
download. The page is complete without its script, which only makes the tables sortable. For the same records it is
the same file, byte for byte: nothing in it depends on when or where it was made.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2

from reproduce import published, scales
from reproduce.published import Row
from reproduce.statistics import MARGIN_POINTS
from reproduce.storage import write_atomically
from reproduce.tables import accuracy, memory, provenance, schedules, table1, table2, table3
from reproduce.tables.content import Column, Figure, Finding, Listing, Section, Table, Tone
from reproduce.tables.results import Results, grid, read


@dataclass(frozen=True)
class Coverage:
    """A line of the overview: an exhibit of the paper, and what is here of it."""

    row: Row
    section: Section | None

    @property
    def here(self) -> str:
        """In a few words."""
        return self.section.coverage if self.section else "not run"


def build(records_root: Path, output: Path) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Raises:
        StorageFullError: there was no room.

    """
    expected = [cell for name in scales.SCALES for cell in grid(name).cells]
    html = render(read(records_root, expected))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, html.encode())
    return output


def render(results: Results) -> str:
    """The page."""
    sections = [
        accuracy.section(results),
        table1.section(results),
        table2.section(results),
        table3.section(),
        memory.section(results),
        schedules.section(),
        provenance.section(results),
    ]
    by_key = {section.key: section for section in sections}
    return (
        _environment()
        .get_template("page.html")
        .render(
            paper_title=published.PAPER_TITLE,
            paper_reference=published.PAPER_REFERENCE,
            results=results,
            sections=sections,
            findings=_ordered([finding for section in sections for finding in section.findings]),
            coverage=[Coverage(row, by_key.get(row["key"])) for row in published.read("exhibits")],
            marks=published.Mark,
            margin=MARGIN_POINTS,
            citation=published.CITATION,
        )
    )


def column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The upper line of a table's head: (group, number of columns), neighbours of one group together."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and column.group and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return groups


def _ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Alerts first; else as the sections have them."""
    return sorted(findings, key=lambda finding: finding.tone is not Tone.ALERT)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda words: words.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")
    environment.filters["csv_link"] = lambda table: "data:text/csv;charset=utf-8," + quote(table.csv())
    environment.filters["svg_link"] = lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    environment.filters["column_groups"] = column_groups
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    environment.tests["listing"] = lambda block: isinstance(block, Listing)
    return environment
