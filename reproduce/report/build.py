"""Build the report: read the records, make the page, and write it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import read
from reproduce.records.storage import write_atomically
from reproduce.report.page import render
from reproduce.report.readme import contents, update


def build(records_root: Path, output: Path, *, readme: Path | None = None) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Args:
        records_root: Folder of the records.
        output: File of the page.
        readme: README whose results and pictures are updated too; None to update no README.

    Raises:
        StorageFullError: If the disk is full.
        ReadmeError: If the README has no place for the results.

    """
    expected = [cell for name in scales.SCALES for cell in grid_of(name)]
    with _disable_gc():
        report = render(read(records_root, expected))
        if readme is not None:
            update(readme, *contents(report.answers, report.judged))
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, report.html.encode())
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
