"""Write files atomically."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing and atomically rename it to `path` on success.

    The contents and the directory entry are flushed to the disk. A caller can therefore remove data that the new file
    replaces, such as a checkpoint after its result was written, even if the machine crashes afterwards.

    On an error the previous file at `path` is preserved, and the temporary file is removed.

    Raises:
        OSError: If there is no space or no permission.

    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # not every system can flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
