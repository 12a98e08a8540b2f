"""Define the base of every kind of cell: a frozen configuration with one canonical text, and so one identity."""

import abc
import dataclasses
import difflib
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from reproduce.cells.setting import settings_of


class CellError(ValueError):
    """A setting of a cell is unknown, of the wrong type or out of range."""


@dataclass(frozen=True, kw_only=True)
class Cell(abc.ABC):
    """One experiment. Subclasses add settings; `kind` distinguishes them in JSON.

    Attributes:
        scale: Grid of the cell: `smoke`, `small`, `narrow`, `paper`, or `custom` for a cell of `train`.

    """

    kind: ClassVar[str]

    scale: str

    def __post_init__(self) -> None:
        hints = _hints(type(self))
        for name in _defaults(type(self)):
            object.__setattr__(self, name, _convert(name, getattr(self, name), hints[name]))
        if not re.fullmatch(r"[a-z0-9_]+", self.scale):
            raise CellError(f"scale must be lower-case letters, digits and underscores, got {self.scale!r}")
        for name, described in settings_of(type(self)).items():
            value = getattr(self, name)
            if described.choices:
                check_choice(name, value, described.choices)
            if described.least is not None and value < described.least:
                raise CellError(f"{name} must be at least {described.least}, got {value}")
            if described.most is not None and value > described.most:
                raise CellError(f"{name} must be at most {described.most}, got {value}")
        try:
            self._check()
        except ValueError as error:  # includes the checks of the engine
            raise CellError(str(error)) from None

    @property
    def epochs_expected(self) -> int:
        """Number of lines of metrics of a finished record; 0 for kinds without epochs."""
        return 0

    @abc.abstractmethod
    def _check(self) -> None:
        """Raise ValueError for values out of range."""

    @property
    @abc.abstractmethod
    def slug(self) -> str:
        """Short, readable name of the cell. It is not unique; see `name`."""

    def to_dict(self) -> dict[str, Any]:
        """Return every setting with its value, `kind` first. `from_dict` is the inverse."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in _defaults(type(self))}}

    def converted(self, kind: "type[CellT]", **changes: Any) -> "CellT":
        """Return a cell of another kind with `changes` and otherwise the settings of this one."""
        names = [field.name for field in dataclasses.fields(kind) if field.name not in changes]
        return kind(**{name: getattr(self, name) for name in names}, **changes)

    def without_defaults(self) -> dict[str, Any]:
        """Return the settings without those at their defaults, `kind` first.

        Settings added after the first records were written have defaults, which describe the earlier behaviour.
        Defaults are excluded from the identity, so older records keep theirs.
        """
        defaults = _defaults(type(self))
        return {name: value for name, value in self.to_dict().items() if value != defaults.get(name)}

    def text_without(self, *names: str) -> str:
        """Return the other settings as text, which is equal for all cells that differ only in `names`."""
        return json.dumps({name: value for name, value in self.to_dict().items() if name not in names}, sort_keys=True)

    @property
    def canonical(self) -> str:
        """The canonical JSON text of the configuration: no defaults, sorted keys, no spaces, ASCII."""
        return json.dumps(self.without_defaults(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of the canonical text, 64 hex digits."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def name(self) -> str:
        """Folder name of its record: the slug and the first 12 digits of the identity."""
        return f"{self.slug}-{self.identity[:12]}"


CellT = typing.TypeVar("CellT", bound=Cell)


def near_matches(wrong: str, names: typing.Iterable[str]) -> str:
    """Return the end of an error about a wrong name: `did you mean …?`, or all names if none is near."""
    choices = list(names)
    near = difflib.get_close_matches(wrong, choices, n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(choices)}"


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise CellError if a setting has an unknown value. The message lists near matches."""
    if value not in choices:
        raise CellError(f"there is no {name} {value!r}; {near_matches(value, choices)}")


_hints = functools.cache(typing.get_type_hints)


@functools.cache
def _defaults(kind: type[Cell]) -> dict[str, Any]:
    """Return the default of each setting of a kind of cells, or `dataclasses.MISSING`, in the order of the settings."""
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _convert(name: str, value: object, wanted: Any) -> object:
    """Convert `value` to the type of the field, in canonical form. Integers are accepted for floats, lists for tuples.

    Raises:
        CellError: The value has another type, or is not finite.

    """
    if isinstance(wanted, types.GenericAlias):  # tuple[int, ...]
        if not isinstance(value, tuple | list):
            raise CellError(f"{name} must be a list of {wanted.__args__[0].__name__}, got {value!r}")
        return tuple(_convert(name, item, wanted.__args__[0]) for item in value)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:  # exact: True is not an int here
        raise CellError(f"{name} must be {wanted.__name__}, got {type(value).__name__} {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise CellError(f"{name} must be finite, got {value}")
    return value + 0.0 if isinstance(value, float) else value  # makes -0.0 equal 0.0 in the identity, too
