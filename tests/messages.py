"""Keep golden tables of error messages: text files with a case in a line that begins with `> `, and its message below.

A module that has such a file next to it defines how a case is run. To add a case, add its first line and run the
module, which rewrites every message. `git diff` then shows each message that has changed.

A file of outputs has the same form. Each case is the output of a test, which calls `compare`. The environment variable
PETRA_REWRITE=1 makes the tests rewrite it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MARK = "> "  # before the first line of a case
OUTPUTS = Path(__file__).parent / "reproduce" / "commands" / "outputs.txt"


def read(file: Path) -> dict[str, str]:
    """Return the expected message of every case."""
    blocks = file.read_text(encoding="utf-8").split(f"\n{MARK}")
    first, *others = (block.strip().partition("\n") for block in blocks)
    return {case.removeprefix(MARK): message for case, _, message in (first, *others)}


def rewrite(file: Path, message_of: Callable[[str], str]) -> None:
    """Write the present message of every case."""
    file.write_text("".join(f"{MARK}{case}\n{message_of(case)}\n" for case in read(file)), encoding="utf-8")


def compare(file: Path, title: str, text: str) -> None:
    """Compare the output of a test with the expected one, without spaces at the ends of lines."""
    actual = "\n".join(map(str.rstrip, text.splitlines())).strip()
    if os.environ.get("PETRA_REWRITE"):
        messages = read(file) | {title: actual}
        file.write_text("".join(f"{MARK}{name}\n{messages[name]}\n" for name in sorted(messages)), encoding="utf-8")
    assert actual == read(file).get(title), f"review {title!r} of {file.name}, or run this test with PETRA_REWRITE=1"


def message_of_expression(expression: str, names: Mapping[str, Any]) -> str:
    """Return the type and the message, on one line, of the error that a Python expression raises.

    Raises:
        AssertionError: The expression has a value.

    """
    try:
        eval(expression, dict(names))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    raise AssertionError(f"{expression}: raises no error")
