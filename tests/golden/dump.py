"""Write down what the report says, one text file a section: findings, and of every table columns and entries.

    python -m tests.golden.dump reports/records tests/golden [SECTION...]

Guards a change of how the report is made: `git diff tests/golden` afterwards shows every entry that differs.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from reproduce.exhibits._exhibit import Exhibit
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import read
from reproduce.report.build import SECTIONS, make_section
from reproduce.show.content import Block, Figure, Listing, Section, Table


def lines_of(section: Section) -> Iterator[str]:
    """The text of a section."""
    yield f"SECTION {section.key}: {section.title}"
    yield f"coverage: {section.coverage}"
    for finding in section.findings:
        yield f"finding [{finding.tone.value}] {finding.text}"
    for block in (*section.blocks, *section.folded):
        yield from lines_of_block(block)


def lines_of_block(block: Block) -> Iterator[str]:
    """The text of a table in full, of what is drawn the title."""
    if isinstance(block, Table):
        yield f"table {block.key}: {block.caption}"
        yield " | ".join(f"{c.group} / {c.name}" if c.group else c.name for c in block.columns)
        for row in block.rows:
            yield "  " + " | ".join(entry.text + (f"[{entry.mark.value}]" if entry.mark else "") for entry in row)
        for note in block.notes:
            yield f"  note {note}"
    elif isinstance(block, Figure):
        yield f"figure {block.key}: {block.title}"
    elif isinstance(block, Listing):
        yield f"listing {block.key}"
    else:
        yield f"paragraph {block}"


def main(records: Path, output: Path, *keys: str) -> None:
    """Write the files of these sections; of all, if none is named."""
    results = read(records, [cell for name in scales.SCALES for cell in grid_of(name).cells])
    for make in SECTIONS:
        name = make.key if isinstance(make, Exhibit) else make.__module__.rpartition(".")[2]
        if not keys or name in keys:
            section = make_section(make, results)
            text = "\n".join(lines_of(section))
            (output / f"{section.key}.txt").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
