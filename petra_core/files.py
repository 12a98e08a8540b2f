"""Files written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the name `path`, at the end and at once, if nothing goes wrong.

    Raises:
        OSError: no space, no permission; what was at `path` before is still there, and no temporary file is left.

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
