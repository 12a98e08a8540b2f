"""From a folder of records to one HTML file that needs nothing else.

A report that fetches its style, its plots or its data from somewhere is dead when that place is. Everything is inside
here: style and script inline, drawings as SVG in the page, every table and drawing again as a `data:` link to
download (CSV, SVG). A copy of the one file is therefore whole; the downloads are about half of its size. The
page is complete without its script, which only sorts tables and hides what is not chosen, and its security policy
forbids it to load anything. For the same records it is the same file, byte for byte: nothing in it depends on when or
where it was made.
"""

import base64
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import quote

import jinja2

from reproduce import published
from reproduce.exhibits import (
    accounts,
    accuracy,
    benchmarks,
    depth,
    figure4,
    figure5,
    figure6,
    invertible,
    length,
    memory,
    pareprop,
    provenance,
    scale_study,
    schedules,
    stability,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    transformers,
)
from reproduce.exhibits._exhibit import Exhibit, section
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.frames import Frames
from reproduce.records.results import Results, read
from reproduce.records.storage import write_atomically
from reproduce.report import citing, overview, paper, switches
from reproduce.show.content import Figure, Listing, Section, Table
from reproduce.show.statistics import MARGIN_POINTS

#: Each can be made without the others, so several processes can.
SECTIONS: tuple[Exhibit | Callable[[Results], Section], ...] = (
    accuracy.section,
    table1.section,
    table2.section,
    table3.section,
    table4.EXHIBIT,
    table5.section,
    table6.section,
    figure4.section,
    figure5.EXHIBIT,
    figure6.EXHIBIT,
    length.EXHIBIT,
    depth.section,
    stability.section,
    invertible.section,
    scale_study.section,
    transformers.EXHIBIT,
    pareprop.section,
    benchmarks.section,
    memory.section,
    lambda _: schedules.section(),  # no record changes it
    provenance.section,
)


def build(records_root: Path, output: Path, *, jobs: int = 1) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Args:
        records_root: the folder of records.
        output: the page.
        jobs: processes that draw its sections.

    Raises:
        StorageFullError: there was no room.

    """
    expected = [cell for name in scales.SCALES for cell in grid_of(name).cells]
    html = render(read(records_root, expected), jobs=jobs)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, html.encode())
    return output


def render(results: Results, *, jobs: int = 1) -> str:
    """The page."""
    sections = [make_section(make, results) for make in SECTIONS] if jobs == 1 else _side_by_side(results, jobs)
    parts = overview.parts(sections)
    in_order = [section for part in parts for section in part.sections]
    return (
        _environment()
        .get_template("page.html")
        .render(
            paper_title=published.PAPER_TITLE,
            paper_reference=published.PAPER_REFERENCE,
            begun=results.begun,
            parts=parts,
            attention=overview.attention(in_order),
            findings=overview.other_findings(in_order),
            scales_run=overview.scales_run(results),
            coverage=overview.coverage(results, in_order),
            marks=published.Mark,
            margin=MARGIN_POINTS,
            citation=citing.entries(results),
        )
    )


def _side_by_side(results: Results, jobs: int) -> list[Section]:
    """The sections, drawn by so many processes."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    with ProcessPoolExecutor(min(jobs, len(SECTIONS)), context, _receive, (results,)) as pool:
        return list(pool.map(_make, range(len(SECTIONS))))


_received: Results  # in a process of `_side_by_side`


def _receive(results: Results) -> None:
    global _received
    _received = results


def _make(number: int) -> Section:
    return make_section(SECTIONS[number], _received)


def make_section(exhibit: Exhibit | Callable[[Results], Section], results: Results) -> Section:
    """The section of an exhibit."""
    return section(exhibit, Frames(results)) if isinstance(exhibit, Exhibit) else exhibit(results)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = lambda words: re.sub(r"(?<=\w)'(?=\w)", "\N{RIGHT SINGLE QUOTATION MARK}", words)
    environment.filters["csv_link"] = lambda table: "data:text/csv;charset=utf-8," + quote(table.csv())
    environment.filters["svg_link"] = lambda svg: _link("image/svg+xml", svg.encode())
    environment.filters["label"] = overview.label
    environment.filters["words"] = overview.words
    environment.filters["commands"] = lambda section: accounts.commands(section.key)
    environment.filters["first_is_code"] = lambda table: any(row[0].code for row in table.rows[:1])
    environment.globals["switches"] = switches
    environment.filters["column_groups"] = paper.column_groups
    environment.filters["paper_parts"] = paper.parts
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    environment.tests["listing"] = lambda block: isinstance(block, Listing)
    return environment


def _link(kind: str, file: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"
