"""Describe settings and options once, in the dataclass that holds them.

The section `Attributes:` of the class contains the help text of a field, and `setting` adds what the option needs: its
group in `--help`, its spelling, and the rule of its default. The command line (`reproduce.commands.options`) and the
command that repeats a cell (`reproduce.grids.rerun`) are derived from both. Nothing of it is part of a value, so it
does not change the identity of a cell.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Groups of settings and options in `--help`.
NETWORK, DATA, METHOD, GUESSES, RECIPE = "Network", "Data", "Method", "Forward gradients", "Recipe"
WHICH, WHERE, HOW, PROCESSES, FILES = "Which cells", "Where", "How", "Processes", "Files"
OPTIONS = "Options"  # of a command whose options have no groups
KEY = "setting"  # key of the description in a field's metadata


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Description of a setting or an option.

    Attributes:
        group: Heading in `--help`.
        text: Help text, from the section `Attributes:` of the class.
        flags: Spellings of the option, the preferred one last; empty for the name of the field with hyphens.
        old: Former spelling, which still works and prints a notice.
        rule: Description of the default if it depends on other settings; `{default}` stands for the usual value. Empty
            if the default is a constant.
        metavar: Placeholder of the value in `--help`; empty for that of its type.
        choices: Allowed values; empty for any value.
        spellings: Spelled value -> value of the field, if they differ.
        listed: Values that the help lists, if others are allowed or spelled differently.
        least: Smallest allowed number, or None.
        most: Largest allowed number, or None.
        minutes: Whether the number is a time in minutes.
        parse: Function from the text of the option to the value, or its click type; None for the usual one of the
            field's type.
        whole: Whether a value of a repeated option may contain commas.
        bare: Value of the option if it is given without a value, or None if it needs one.

    """

    group: str
    text: str = ""
    flags: tuple[str, ...] = ()
    old: str = ""
    rule: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    listed: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    minutes: bool = False
    parse: Any = None
    whole: bool = False
    bare: str | None = None


def setting(group: str, *, default: Any = dataclasses.MISSING, **description: Any) -> Any:
    """Return a dataclass field with a description. Keywords are attributes of `Setting`.

    A field without `default` must be given, as in any dataclass.
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(group=group, **description)})


@functools.cache
def settings_of(kind: Any) -> Mapping[str, Setting]:
    """Return the description of every described field of a dataclass by name, in the order of the fields."""
    documented: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        documented |= dict(re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section, re.MULTILINE))
    described = {field.name: field.metadata[KEY] for field in dataclasses.fields(kind) if KEY in field.metadata}
    return {
        name: dataclasses.replace(setting, text=" ".join([*documented.get(name, "").split(), *_one_of(setting)]))
        for name, setting in described.items()
    }


def _one_of(described: Setting) -> Iterator[str]:
    if values := described.listed or (() if described.spellings or described.metavar else described.choices):
        yield f"One of {', '.join(values)}."


def flags_of(name: str, described: Setting) -> tuple[str, ...]:
    """Return the spellings of the option for a field, the preferred one last."""
    return described.flags or (f"--{name.replace('_', '-')}",)


def spell(value: Any, described: Setting) -> str:
    """Return a value as its option spells it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return next((word for word, meant in described.spellings.items() if meant == value), str(value))
