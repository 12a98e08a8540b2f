"""Read text files that somebody else may have written: records, benchmarks and manifests.

A record comes from another machine, and perhaps from a stranger. What is read here is a regular file of limited size,
JSON that fits into memory, numbers that are finite, and text that can be printed, drawn and encoded. Everything else
is an error that names the file and the value, so that one odd value takes nothing else down.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LARGEST_FILE = 256 << 20  # bytes; larger text files were not written by this suite
LARGEST_INTEGER = 1 << 63
DEEPEST = 32  # lists and objects within one another
SHOWN = 60  # characters of a value in an error
#: Characters that no terminal, XML file or font takes as text: controls but for tab and newline, half a surrogate pair.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def read_file(file: Path) -> bytes:
    """Return the content of a regular file of limited size; links are not followed.

    A link may lead to a file of this machine that is not meant to be copied or shown, and a pipe or a device never
    ends.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        ValueError: it is a link, no regular file, or too large.

    """
    check_file(file)
    return file.read_bytes()


def check_file(file: Path) -> os.stat_result:
    """Return the status of a file that `read_file` would read. Raises: as `read_file`."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a pipe, a device or a folder"
        raise ValueError(f"it is {what}, expected a regular file")
    if status.st_size > LARGEST_FILE:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {LARGEST_FILE:,}")
    return status


def parse_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Return the value of a JSON text in UTF-8; `nan`: with numbers that are not finite, as asv writes them.

    Raises:
        ValueError: it is not JSON, is nested too deeply or too large, or has a number or a text that is of no use.

    """
    try:
        values = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
        _check_plain(values, 0, nan)
    except RecursionError:
        raise ValueError(f"it is nested too deeply, expected at most {DEEPEST} levels") from None
    except MemoryError:
        raise ValueError("it does not fit into memory") from None
    return values


def _check_plain(value: Any, depth: int, nan: bool) -> None:
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        if odd := UNPRINTABLE.search(value):
            raise ValueError(f"the text {short(value)} contains the character {odd[0]!r}")
    elif isinstance(value, float):
        if not nan and not math.isfinite(value):
            raise ValueError(f"expected finite numbers, got {value}")
    elif isinstance(value, int):
        if abs(value) >= LARGEST_INTEGER:
            raise ValueError(f"a number has {value.bit_length()} bits, expected at most 63")
    elif isinstance(value, list):
        if set(map(type, value)) == {float} and all(map(math.isfinite, value)):
            return  # most of what a record holds
        for entry in value:
            _check_plain(entry, depth + 1, nan)
    elif isinstance(value, dict):
        for name, entry in value.items():
            _check_plain(name, depth, nan)
            _check_plain(entry, depth + 1, nan)


def short(value: Any) -> str:
    """Return the beginning of a value, for an error."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# --- shapes of values

Check = Callable[[Any], bool]


def number(value: Any) -> bool:
    """Return whether it is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(value: Any) -> bool:
    """Return whether it is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def percent(value: Any) -> bool:
    """Return whether it is a number from 0 to 100."""
    return number(value) and 0 <= value <= 100


def amount(value: Any) -> bool:
    """Return whether it is a number of at least 0."""
    return number(value) and value >= 0


def text(value: Any) -> bool:
    """Return whether it is a text."""
    return isinstance(value, str)


def truth(value: Any) -> bool:
    """Return whether it is true or false."""
    return isinstance(value, bool)


def scalar(value: Any) -> bool:
    """Return whether it is a text, a number, true, false or null."""
    return value is None or isinstance(value, str | int | float | bool)


#: What is expected by a check, in words.
DESCRIBED: dict[Check, str] = {
    number: "a number",
    whole: "a whole number of at least 0",
    percent: "a number from 0 to 100",
    amount: "a number of at least 0",
    text: "a text",
    truth: "true or false",
    scalar: "a text, a number, true, false or null",
}


def _expected(check: Check) -> str:
    return DESCRIBED.get(check, "another value")


def _described(check: Check, words: str) -> Check:
    DESCRIBED[check] = words
    return check


def or_null(check: Check) -> Check:
    """Return a check that also accepts null."""
    return _described(lambda value: value is None or check(value), f"null or {_expected(check)}")


def list_of(check: Check) -> Check:
    """Return a check for a list of which every entry passes `check`."""
    whole_list: Check = lambda value: isinstance(value, list) and all(map(check, value))  # noqa: E731  # a closure
    return _described(whole_list, f"a list, of which each entry is {_expected(check)}")


def dict_of(check: Check) -> Check:
    """Return a check for an object of which every value passes `check`."""
    whole_object: Check = lambda value: isinstance(value, dict) and all(map(check, value.values()))  # noqa: E731  # one, too
    return _described(whole_object, f"a JSON object, of which each value is {_expected(check)}")


def object_of(shape: Mapping[str, Check], others: Check = lambda _: True) -> Check:
    """Return a check for an object that has all names of `shape`; `others` is for the values of other names."""

    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and shape.keys() <= value.keys()
            and all(shape.get(name, others)(entry) for name, entry in value.items())
        )

    return _described(check, f"a JSON object with {', '.join(shape)}")


def problem(values: Mapping[str, Any], shape: Mapping[str, Check], needed: Mapping[str, Check] | None = None) -> str:
    """Return what is wrong with an object, in words; empty if nothing is.

    Args:
        values: the object.
        shape: checks by name, for names that may be missing.
        needed: likewise, for names that must be there.

    """
    lacking = [name for name in needed or {} if name not in values]
    if lacking:
        return f"it lacks {', '.join(lacking)}"
    for name, check in {**shape, **(needed or {})}.items():
        if name in values and not check(values[name]):
            return f"{name} is {short(values[name])}, expected {_expected(check)}"
    return ""


STRINGS = list_of(text)
#: Machine and software of a run; further entries are settings.
ENVIRONMENT: Mapping[str, Check] = {
    "device": text,
    "processor": text,
    "cores": or_null(whole),
    "threads": whole,
    "python": text,
    "platform": text,
    "packages": dict_of(text),
}
SETTING: Check = lambda value: scalar(value) or list_of(scalar)(value) or dict_of(scalar)(value)  # noqa: E731  # a shape
CODE: Mapping[str, Check] = {
    **dict.fromkeys(("version", "commit"), or_null(text)),
    "clean": truth,
    "untracked": STRINGS,
    "note": text,
    "sources": dict_of(text),
}
#: Of which data a run was trained; needed where there is any.
DATA: Mapping[str, Check] = {
    "dataset": text,
    "files": dict_of(text),
    "official": truth,
    "deviations": STRINGS,
    "reason": text,
}
