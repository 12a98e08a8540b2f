"""Read text files from untrusted sources: records, benchmarks and manifests.

A record comes from another machine, and perhaps from a stranger. The functions accept a regular file of limited size,
JSON that fits into memory, finite numbers, and text that can be printed, drawn and encoded. Anything else raises an
error that names the file and the value, so that one bad value affects only its file.
"""

import dataclasses
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST_FILE = 256 << 20  # bytes; larger text files were not written by this suite
LARGEST_INTEGER = 1 << 63
DEEPEST = 32  # nested lists and objects
SHOWN = 60  # characters of a value shown in an error
#: Characters that no terminal, XML file or font accepts: controls except tab and newline, and lone surrogates.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def read_file(file: Path) -> bytes:
    """Return the content of a regular file of limited size. Links are not followed.

    A link may lead to a private file of this machine, and a pipe or a device never ends.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The file cannot be read.
        ValueError: It is a link, not a regular file, or too large.

    """
    check_file(file)
    return file.read_bytes()


def check_file(file: Path) -> os.stat_result:
    """Return the status of a file that `read_file` would read.

    Raises:
        OSError: As for `read_file`.
        ValueError: As for `read_file`.

    """
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a pipe, a device or a folder"
        raise ValueError(f"it is {what}, expected a regular file")
    if status.st_size > LARGEST_FILE:
        raise ValueError(f"it has {status.st_size:,} bytes, expected at most {LARGEST_FILE:,}")
    return status


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8.

    Raises:
        ValueError: It is not JSON, is nested too deeply, is too large, or has an invalid number or text.

    """
    try:
        values = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
        _check_plain(values, 0)
    except RecursionError:
        raise ValueError(f"it is nested too deeply, expected at most {DEEPEST} levels") from None
    except MemoryError:
        raise ValueError("it does not fit into memory") from None
    return values


def _check_plain(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        if odd := UNPRINTABLE.search(value):
            raise ValueError(f"the text {short(value)} contains the character {odd[0]!r}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected finite numbers, got {value}")
    elif isinstance(value, int):
        if abs(value) >= LARGEST_INTEGER:
            raise ValueError(f"a number has {value.bit_length()} bits, expected at most 63")
    elif isinstance(value, list):
        if set(map(type, value)) == {float} and all(map(math.isfinite, value)):
            return  # most of what a record holds
        for entry in value:
            _check_plain(entry, depth + 1)
    elif isinstance(value, dict):
        for name, entry in value.items():
            _check_plain(name, depth)
            _check_plain(entry, depth + 1)


def printable(text: str) -> str:
    """Escape the characters that cannot be printed or encoded, which names of files may contain."""
    return UNPRINTABLE.sub(lambda character: ascii(character[0])[1:-1], text)


def short(value: Any) -> str:
    """Return the beginning of a value, for an error."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# --- shapes of values


#: Values of JSON by the types that they become. Dataclasses and mappings are JSON objects.
_JSON = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
    types.NoneType: "null",
}


def convert(kind: Any, value: Any, name: str) -> Any:
    """Return a JSON value as a value of a type.

    Args:
        kind: A dataclass, a tuple, a mapping with names, a union, or a plain type. Names that are not fields of a
            dataclass are ignored.
        value: The value. It may already be of the type.
        name: Its name, for errors.

    Raises:
        ValueError: It does not fit the type.

    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
        missing = [field.name for field in fields if field.name not in value and field.default is dataclasses.MISSING]
        if missing:
            raise ValueError(f"{name}: it lacks {', '.join(missing)}")
        return kind(**{n: convert(hints[n], value[n], n) for n in (field.name for field in fields) if n in value})
    if origin is tuple and isinstance(value, list) and (arguments[-1] is ... or len(value) == len(arguments)):
        return tuple(convert(arguments[0], entry, name) for entry in value)
    if origin is Mapping and isinstance(value, dict):
        return {key: convert(arguments[1], entry, key) for key, entry in value.items()}
    plain = arguments if origin is types.UnionType else (kind,)
    accepted = (*plain, int) if float in plain else plain
    if origin not in (None, types.UnionType) or not (kind is Any or type(value) in accepted):
        expected = " or ".join(_JSON.get(typing.get_origin(one) or one, "a JSON object") for one in plain)
        if origin is tuple and arguments[-1] is not ...:
            expected += f" of {len(arguments)}"
        raise ValueError(f"{name} is {short(value)}, expected {expected}")
    return float(value) if kind is float else value


@dataclass(frozen=True)
class Check:
    """A check of a value.

    Attributes:
        expected: Description of the accepted values, for errors.
        accepts: Function that returns whether a value is accepted.

    """

    expected: str
    accepts: Callable[[Any], bool]

    def __call__(self, value: Any) -> bool:
        return self.accepts(value)


number = Check("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
amount = Check("a number of at least 0", lambda value: number(value) and value >= 0)
percent = Check("a number from 0 to 100", lambda value: number(value) and 0 <= value <= 100)
whole = Check("a whole number of at least 0", lambda value: isinstance(value, int) and amount(value))
text = Check("a text", lambda value: isinstance(value, str))
truth = Check("true or false", lambda value: isinstance(value, bool))
scalar = Check(
    "a text, a number, true, false or null", lambda value: value is None or isinstance(value, str | int | float | bool)
)


def or_null(check: Check) -> Check:
    """Return a check that also accepts null."""
    return Check(f"null or {check.expected}", lambda value: value is None or check(value))


def list_of(check: Check) -> Check:
    """Return a check for a list whose entries all pass `check`."""
    words = f"a list in which each entry is {check.expected}"
    return Check(words, lambda value: isinstance(value, list) and all(map(check, value)))


def dict_of(check: Check) -> Check:
    """Return a check for an object whose values all pass `check`."""
    words = f"a JSON object in which each value is {check.expected}"
    return Check(words, lambda value: isinstance(value, dict) and all(map(check, value.values())))


def object_of(shape: Mapping[str, Check], others: Callable[[Any], bool] = lambda _: True) -> Check:
    """Return a check for an object with all names of `shape`. `others` checks the values of other names."""

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and shape.keys() <= value.keys()
            and all(shape.get(name, others)(entry) for name, entry in value.items())
        )

    return Check(f"a JSON object with {', '.join(shape)}", accepts)


def problem(values: Mapping[str, Any], shape: Mapping[str, Check], needed: Mapping[str, Check] | None = None) -> str:
    """State what is wrong with an object; return an empty string if nothing is.

    Args:
        values: The object.
        shape: Checks by name, for names that may be missing.
        needed: Checks by name, for names that must be present.

    """
    lacking = [name for name in needed or {} if name not in values]
    if lacking:
        return f"it lacks {', '.join(lacking)}"
    for name, check in {**shape, **(needed or {})}.items():
        if name in values and not check(values[name]):
            return f"{name} is {short(values[name])}, expected {check.expected}"
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
SETTING = Check("another value", lambda value: scalar(value) or list_of(scalar)(value) or dict_of(scalar)(value))
CODE: Mapping[str, Check] = {
    **dict.fromkeys(("version", "commit"), or_null(text)),
    "clean": truth,
    "untracked": STRINGS,
    "note": text,
    "sources": dict_of(text),
}
#: Training data of a run; required if the run has any.
DATA: Mapping[str, Check] = {
    "dataset": text,
    "files": dict_of(text),
    "official": truth,
    "deviations": STRINGS,
    "reason": text,
}
