"""Write the error messages of wrong command lines and of wrong settings of cells to errors.txt.

    python -m tests.reproduce.errors

This rewrites every message of errors.txt; to add a case, add its first line. `git diff` then shows each message that
has changed. A case is a command line, or `training` or `forward` with changes of the settings of a cell, in JSON.
"""

import contextlib
import json
import shlex
import tempfile
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

from reproduce.cells.kinds import CellError, from_dict
from reproduce.commands.cli import main
from tests.reproduce.cells.test_cells import FORWARD, TRAINING

FILE = Path(__file__).with_name("errors.txt")
MARK = "> "  # before the first line of a case
#: Functions that start the work of a command.
WORK = (
    "reproduce.running.runner.run_grid",
    "reproduce.commands.process.train_here",
    "reproduce.commands.train.launch",
    "reproduce.commands.partition.time_network",
)
CELLS = {"training": TRAINING, "forward": FORWARD}


def cases() -> dict[str, str]:
    """Return the expected message of every case."""
    blocks = FILE.read_text(encoding="utf-8").split(f"\n{MARK}")
    first, *others = (block.strip().partition("\n") for block in blocks)
    return {case.removeprefix(MARK): message for case, _, message in (first, *others)}


def message_of(case: str) -> str:
    """Return the message that a case ends with. It must leave no files.

    Raises:
        AssertionError: The case ends in another way than with an error of the user.

    """
    kind, _, changes = case.partition(" ")
    if kind in CELLS:
        try:
            from_dict(CELLS[kind].to_dict() | json.loads(changes))
        except CellError as error:
            return str(error)
        raise AssertionError(f"{case}: the settings are accepted")
    started = AssertionError(f"{case}: the command line is accepted")
    with contextlib.ExitStack() as stack:
        for work in WORK:
            stack.enter_context(mock.patch(work, side_effect=started))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        result = CliRunner().invoke(main, shlex.split(case))
        left = [path.name for path in Path(folder).rglob("*")]
    assert isinstance(result.exception, SystemExit), f"{case}: {result.output} {result.exception!r}"
    assert not left, f"{case}: left {left}"
    message = (result.stderr.partition("Error: ")[2] or result.stderr).strip()
    message = message.replace(f"{Path(folder).resolve()}/", "")
    return message if result.exit_code == 2 else f"exit code {result.exit_code}: {message}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{MARK}{case}\n{message_of(case)}\n" for case in cases()), encoding="utf-8")
