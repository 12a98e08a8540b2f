"""Build the report: read the records, make the page and the verdicts, and write them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import read
from reproduce.records.storage import check_own, write_atomically
from reproduce.report.page import render
from reproduce.report.readme import contents, update

VERDICTS = "verdicts.json"  # written next to the page


def build(records_root: Path, output: Path, *, readme: Path | None = None) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Args:
        records_root: Folder of the records.
        output: File of the page.
        readme: README whose results and pictures are updated too; None to update no README.

    Raises:
        StorageFullError: If the disk is full.
        StorageError: If the file of the verdicts exists and was not written by a report.
        ReadmeError: If the README has no place for the results.

    """
    check_own(output.with_name(VERDICTS), b'{\n  "verdicts"')
    expected = [cell for name in scales.SCALES for cell in grid_of(name)]
    with _disable_gc():
        report = render(read(records_root, expected))
        if readme is not None:
            update(readme, contents(report.top.answers, report.top.headlines, report.top.judged))
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, report.html.encode())
        write_atomically(output.with_name(VERDICTS), report.verdicts.encode())
    return output


@contextmanager
def _disable_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector, which took a third of the time.

    Records and simulations create millions of small objects without cycles. The figures keep only 60 MB in total.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
