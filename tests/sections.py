"""Sections of the report, made from a folder of records."""

from collections.abc import Iterable
from pathlib import Path

from reproduce import published
from reproduce.cells.kinds import Cell
from reproduce.exhibits._exhibit import Exhibit, section
from reproduce.exhibits.claims import Judged, judge_claim, standing
from reproduce.records.benchmarks import Benchmark
from reproduce.records.frames import Frames, Sheet
from reproduce.records.results import Results, read
from reproduce.show.content import Entry, Section, Standing, Table

__all__ = ["entries", "judged", "made", "of_benchmarks", "sheets", "standing_of", "table", "tables"]


def made(exhibit: Exhibit, root: Path, planned: Iterable[Cell] = ()) -> Section:
    """The section of an exhibit from the records under `root`, and of cells that may have none."""
    return section(exhibit, Frames(read(root, planned)))


def judged(exhibit: str, root: Path) -> list[Judged]:
    """The verdicts on the claims about an exhibit from the records under `root`."""
    frames = Frames(read(root))
    return [judge_claim(claim, frames) for claim in published.claims() if claim.exhibit == exhibit]


def standing_of(exhibit: str, root: Path) -> Standing | None:
    """What these verdicts come to."""
    return standing(judged(exhibit, root))


def of_benchmarks(exhibit: Exhibit, *records: Benchmark) -> Section:
    """The section of an exhibit where nothing else has been recorded."""
    return section(exhibit, Frames(Results((), (), records)))


def sheets(root: Path, scale: str, cells: Iterable[Cell]) -> list[Sheet]:
    """The sheets of these cells."""
    return list(Frames(read(root)).sheets(scale, list(cells)))


def tables(section: Section) -> list[Table]:
    """All tables of a section, those on demand last."""
    return [block for block in (*section.blocks, *section.folded) if isinstance(block, Table)]


def table(section: Section, key: str) -> Table:
    """The table with this key."""
    return next(table_of for table_of in tables(section) if table_of.key == key)


def entries(of: Table, *leading: str) -> dict[tuple[str, str], Entry]:
    """The row that begins with these texts, by group and name of the column; of columns of one name the first."""
    row = next(row for row in of.rows if tuple(entry.text for entry in row[: len(leading)]) == leading)
    heads = [(str(column.group), column.name) for column in of.columns]
    return dict(reversed(list(zip(heads, row, strict=True))))
