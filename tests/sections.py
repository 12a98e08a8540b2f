"""Make sections of the report from a folder of records."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from reproduce import published
from reproduce.cells.kinds import Cell
from reproduce.exhibits._exhibit import Exhibit, section
from reproduce.exhibits.claims import Judged, judge_claim
from reproduce.presentation.content import Entry, Figure, Section, Table
from reproduce.presentation.plots import SVG
from reproduce.records.benchmarks import Benchmark
from reproduce.records.frames import Frames, RunSet
from reproduce.records.results import Results, read


class Situation(NamedTuple):
    """Records in which an exhibit is rendered as text, and compared with a golden file."""

    exhibit: Exhibit
    write: Callable[[Path], object]  # writes the records to a folder
    prefix: str  # beginning of the keys of the tables and figures in the text


SITUATIONS: dict[str, Situation] = {}


def situation(exhibit: Exhibit, prefix: str = "") -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Mark a function that writes records as a situation of an exhibit. Its docstring states what the text shows."""

    def marked(write: Callable[[Path], None]) -> Callable[[Path], None]:
        SITUATIONS[f"{exhibit.key}: {write.__name__}"] = Situation(exhibit, write, prefix)
        return write

    return marked


def made(exhibit: Exhibit, root: Path, planned: Iterable[Cell] = ()) -> Section:
    """Return the section of an exhibit from the records under `root`, with `planned` cells that may have no record."""
    return section(exhibit, Frames(read(root, planned)))


def judged(exhibit: str, frames: Frames) -> list[Judged]:
    """Return the verdicts on the claims about an exhibit."""
    return [judge_claim(claim, frames) for claim in published.claims() if claim.exhibit == exhibit]


def of_benchmarks(exhibit: Exhibit, *records: Benchmark) -> Section:
    """Return the section of an exhibit if only these benchmarks are recorded."""
    return section(exhibit, Frames(Results((), (), records)))


def run_sets(root: Path, scale: str, cells: Iterable[Cell]) -> list[RunSet]:
    """Return the run sets of these cells."""
    return list(Frames(read(root)).run_sets(scale, list(cells)))


def describe(figure: Figure) -> str:
    """Return the description in a drawing, for readers who cannot see it."""
    return ElementTree.fromstring(figure.svg).findtext(f"{{{SVG}}}desc", "") if figure.svg else ""


def tables(section: Section) -> list[Table]:
    """Return all tables of a section, folded ones last."""
    return [block for block in (*section.blocks, *section.folded) if isinstance(block, Table)]


def table(section: Section, key: str) -> Table:
    """Return the table with this key."""
    return next(table_of for table_of in tables(section) if table_of.key == key)


def entries(table: Table, *leading: str) -> dict[tuple[str, str], Entry]:
    """Return the row that begins with these texts, by group and name of the column (the first of equal names)."""
    row = next(row for row in table.rows if tuple(entry.text for entry in row[: len(leading)]) == leading)
    heads = [(str(column.group), column.name) for column in table.columns]
    return dict(reversed(list(zip(heads, row, strict=True))))
