"""Describe a setting once, in the dataclass field that holds it.

`setting` stores the help text, the group in `--help` and the spelling of an option in the metadata of the field. The
command line (`reproduce.commands.options`) and the command that repeats a cell (`reproduce.grids.rerun`) are derived
from these descriptions. They are no part of a value, so they do not change the identity of a cell.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Groups of settings and options in `--help`.
NETWORK, DATA, METHOD, GUESSES, RECIPE = "Network", "Data", "Method", "Forward gradients", "Recipe"
WHICH, WHERE, HOW, PROCESSES, FILES = "Which cells", "Where", "How", "Processes", "Files"
KEY = "setting"  # key of the description in a field's metadata


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Description of a setting or an option.

    Attributes:
        text: Help text, a sentence.
        group: Heading in `--help`.
        flags: Spellings of the option, the preferred one last; empty for the name of the field with hyphens.
        old: Former spelling, which still works and prints a notice.
        rule: Description of the default if it depends on other settings; `{default}` stands for the usual value. Empty
            if the default is a constant.
        metavar: Placeholder of the value in `--help`; empty for that of its type.
        values: Spelled value -> value of the field, if they differ.
        choices: Allowed values; empty for any value, which the cell checks.
        least: Smallest allowed number, or None.
        minutes: Whether the number is a time in minutes.
        file: Whether the path is that of a file, and not of a folder.
        whole: Whether a value of a repeated option may contain commas.
        bare: Value of the option if it is given without a value, or None if it needs one.

    """

    text: str
    group: str
    flags: tuple[str, ...] = ()
    old: str = ""
    rule: str = ""
    metavar: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choices: tuple[str, ...] = ()
    least: int | None = None
    minutes: bool = False
    file: bool = False
    whole: bool = False
    bare: str | None = None


def setting(text: str, group: str, *, default: Any = dataclasses.MISSING, **description: Any) -> Any:
    """Return a dataclass field with a description. Keywords are attributes of `Setting`.

    A field without `default` must be given, as in any dataclass.
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(text=text, group=group, **description)})


def settings_of(kind: Any) -> Iterator[tuple[str, Setting]]:
    """Yield the name and the description of every described field of a dataclass, in the order of the fields."""
    for field in dataclasses.fields(kind):
        if KEY in field.metadata:
            yield field.name, field.metadata[KEY]


def flags_of(name: str, described: Setting) -> tuple[str, ...]:
    """Return the spellings of the option for a field, the preferred one last."""
    return described.flags or (f"--{name.replace('_', '-')}",)


def spelled(value: Any, described: Setting) -> str:
    """Return a value as its option spells it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return next((word for word, meant in described.values.items() if meant == value), str(value))
