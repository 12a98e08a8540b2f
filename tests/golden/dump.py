"""Write the texts of the report for fixed records, one file per exhibit: sentence, findings, every entry of tables.

    python -m tests.golden.dump [EXHIBIT...]

This rewrites the files of this folder from the committed records that records.txt lists. `git diff tests/golden` then
shows every changed entry. A change of the code must explain each of them. plans.txt has the settings of all planned
cells, and a hash of their identities in their order.
"""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from reproduce.cells import timing
from reproduce.cells.kinds import Cell, ForwardGradientCell, TrainedCell
from reproduce.exhibits._exhibit import all_exhibits, section
from reproduce.exhibits.claims import judge
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import PLANS
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
PLANNED = "plans"
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


def plans() -> str:
    """Return the settings of the planned cells, by plan and scale, and of the grid of each scale."""
    lines: list[str] = []
    for scale in scales.SCALES:
        for name, cells in {**{name: plan(scale) for name, plan in PLANS.items()}, "grid": grid_of(scale)}.items():
            if cells:
                identities = hashlib.sha256(" ".join(cell.identity for cell in cells).encode()).hexdigest()[:16]
                lines.append(f"{scale} {name}: {len(cells)} cells, {len(set(cells))} different, {identities}")
                lines += [] if name == "grid" else settings_of(cells)
    return "\n".join(lines) + "\n"


def settings_of(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the settings that all cells share, and each other one with all its values. `delay` is that of stage 0."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        of_a_pipeline = isinstance(cell, TrainedCell) and not isinstance(cell, ForwardGradientCell)
        vector = timing.vector(cell) if of_a_pipeline else None
        for setting, value in {**cell.to_dict(), "delay": vector and vector[0]}.items():
            values.setdefault(setting, {})[str(value)] = None
    yield "  " + ", ".join(f"{setting} {value}" for setting, (value, *others) in values.items() if not others)
    yield from (f"  {setting}: {'; '.join(found)}" for setting, found in values.items() if len(found) > 1)


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
        if unknown := {*keys} - {HEADLINES, CLAIMS, PLANNED, *(exhibit.key for exhibit in SHOWN)}:
            sys.exit(f"there is no exhibit {', '.join(sorted(unknown))} in reproduce/exhibits/exhibits.toml")
        written = dict(texts(frames, *keys))
        if not keys or HEADLINES in keys:
            written[HEADLINES] = headlines(first_screen(frames))
        if not keys or PLANNED in keys:
            written[PLANNED] = plans()
        for key, text in written.items():
            (HERE / f"{key}.txt").write_text(text)
