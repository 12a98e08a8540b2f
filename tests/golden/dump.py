"""Write the texts of the report for fixed records, one file per exhibit: sentence, findings, every entry of tables.

    python -m tests.golden.dump [EXHIBIT...]

This rewrites the files of this folder from the committed records that records.txt lists. `git diff tests/golden` then
shows every changed entry. A change of the code must explain each of them.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from reproduce.exhibits._exhibit import all_exhibits, section
from reproduce.exhibits.claims import judge
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.presentation.content import Block, Figure, Listing, Section, Table
from reproduce.records import benchmarks, volumes
from reproduce.records.frames import Frames
from reproduce.records.record import scan
from reproduce.records.results import read
from reproduce.report.headline import Answer, first_screen
from tests.sections import describe

HERE = Path(__file__).parent
COMMITTED = HERE.parents[1] / "reports" / "records"
HEADLINES = "headlines"
CLAIMS = "claims"
#: Exhibits without the provenance of records (machine and time do not matter here), and without schedules,
#: which are not in records.
SHOWN = tuple(exhibit for exhibit in all_exhibits() if exhibit.key not in ("provenance", "schedules", "cost"))


def chosen(root: Path) -> Path:
    """Fill a folder of records at `root` with those of records.txt and no others."""
    names = names_of_records()
    for run in scan(COMMITTED).records:
        if f"{run.cell.scale}/{run.cell.name}" in names:
            volumes.publish(run, root)
    for name in names:
        if name.startswith(benchmarks.FOLDER):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(COMMITTED / name, root / name)  # links to files are refused
    return root


def names_of_records() -> list[str]:
    """Return the names in records.txt: scale and name of a cell, or the file of a benchmark."""
    return (HERE / "records.txt").read_text().split()


def frames_of(root: Path) -> Frames:
    """Return the records at `root`, and all planned cells."""
    return Frames(read(root, [cell for name in scales.SCALES for cell in grid_of(name)]))


def texts(frames: Frames, *keys: str) -> Iterator[tuple[str, str]]:
    """Yield key and text of every exhibit and of the claims, or only of `keys`."""
    for exhibit in SHOWN:
        if not keys or exhibit.key in keys:
            yield exhibit.key, "\n".join(lines_of(section(exhibit, frames))) + "\n"
    if not keys or CLAIMS in keys:
        yield (
            CLAIMS,
            "".join(f"{judged.claim.key}: {judged.verdict.value}: {judged.found}\n" for judged in judge(frames)),
        )


def headlines(answers: Sequence[Answer]) -> str:
    """Return the text of the answers at the top, with their pictures and tables."""
    lines: list[str] = []
    for one in answers:
        lines.append(f"ANSWER {one.title}")
        for block in (one.figure, *one.tables, one.text):
            lines += _lines_of_block(block)
    return "\n".join(lines) + "\n"


def lines_of(section: Section) -> Iterator[str]:
    """Yield the text of a section."""
    yield f"SECTION {section.key}: {section.title} {section.count}".rstrip()
    yield f"sentence: {section.sentence}"
    for finding in section.findings:
        yield f"finding [{finding.role.value}] {finding.text}"
    for block in (*section.blocks, *section.folded):
        yield from _lines_of_block(block)


def _lines_of_block(block: Block) -> Iterator[str]:
    """Yield the full text of a table, the texts of a drawing, or prose."""
    if isinstance(block, Table):
        yield f"table {block.key}: {block.caption}"
        yield " | ".join(f"{c.group} / {c.name}" if c.group else c.name for c in block.columns)
        for row in block.rows:
            yield "  " + " | ".join(entry.text + (f"[{entry.mark.value}]" if entry.mark else "") for entry in row)
        yield from (f"  note {note}" for note in block.notes)
    elif isinstance(block, Figure):
        yield f"figure {block.key}: {block.caption} | {describe(block)}"
    elif isinstance(block, Listing):
        yield f"listing {block.key}"
    else:
        yield f"paragraph {block}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        frames, keys = frames_of(chosen(Path(folder))), sys.argv[1:]
        if unknown := {*keys} - {HEADLINES, CLAIMS, *(exhibit.key for exhibit in SHOWN)}:
            sys.exit(f"there is no exhibit {', '.join(sorted(unknown))} in reproduce/exhibits/exhibits.toml")
        written = dict(texts(frames, *keys))
        if not keys or HEADLINES in keys:
            written[HEADLINES] = headlines(first_screen(frames))
        for key, text in written.items():
            (HERE / f"{key}.txt").write_text(text)
