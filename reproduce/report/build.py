"""Build the report: read the records, make the page and the verdicts, and write them.

Importing this module is fast. `build` first starts the helper processes, which import pandas and matplotlib while this
process does the same and reads the records.
"""

from pathlib import Path

from reproduce.records.storage import check_own, write_atomically
from reproduce.report import processes

VERDICTS = "verdicts.json"  # written next to the page


def build(records_root: Path, output: Path, *, jobs: int = 1, readme: Path | None = None) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Args:
        records_root: Folder of the records.
        output: File of the page.
        jobs: Number of processes that draw its sections, including this one.
        readme: README whose results and pictures are updated too; None to update no README.

    Raises:
        StorageFullError: If the disk is full.
        StorageError: If the file of the verdicts exists and was not written by a report.
        ReadmeError: If the README has no place for the results.

    """
    check_own(output.with_name(VERDICTS), b'{\n  "verdicts"')
    with processes.disable_gc(), processes.start(jobs - 1) as helpers:
        from reproduce.grids import scales
        from reproduce.grids.grid import grid_of
        from reproduce.records.results import read
        from reproduce.report.page import render
        from reproduce.report.readme import contents, update

        expected = [cell for name in scales.SCALES for cell in grid_of(name)]
        report = render(read(records_root, expected), helpers)
        if readme is not None:
            update(readme, contents(report.top.answers, report.top.headlines, report.top.judged))
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, report.html.encode())
        write_atomically(output.with_name(VERDICTS), report.verdicts.encode())
    return output
