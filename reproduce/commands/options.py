"""Derive command-line options from described dataclass fields (`reproduce.cells.setting`), in named groups."""

import dataclasses
import errno
import functools
import math
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from reproduce.cells.base import CellError
from reproduce.cells.setting import OPTIONS, Setting, flags_of, settings_of, spell
from reproduce.distributed.launch import is_first_process
from reproduce.measures.run_options import BRANCHES
from reproduce.running.devices import DeviceError


class UserPath(click.Path):
    """Accept a path and expand `~`, which shells do not expand in `--option=~/folder`.

    A path that this user may not read is refused here, once for all commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            click.BadParameter: The path does not fit the option, `~NAME` names no user, or this user may not read it.

        """
        try:
            expanded = Path(value).expanduser()
        except RuntimeError:
            self.fail(f"{str(value)!r} begins with the home folder of a user that does not exist", param, ctx)
        try:
            closed = expanded.is_dir() and not os.access(expanded, os.R_OK | os.X_OK)
        except OSError as error:
            closed = error.errno in (errno.EACCES, errno.EPERM)
        if closed:
            fix = "let this user read it (docs/running.md, several users), or name another one"
            self.fail(f"no permission to read {str(expanded)!r}: {fix}", param, ctx)
        return super().convert(expanded, param, ctx)


LIST = click.STRING  # type of each value of a `ListOption`
FOLDER = UserPath(file_okay=False)
FILE = UserPath(dir_okay=False)


def numbers(text: str) -> tuple[int, ...]:
    """Parse whole numbers, separated by commas.

    Raises:
        click.BadParameter: The text contains something else.

    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise click.BadParameter(f"expected whole numbers separated by commas, such as 2,3,5; got {text!r}") from None


def streams(text: str | int) -> int | str:
    """Parse a number of CUDA streams, or `BRANCHES`.

    Raises:
        click.BadParameter: The text is neither.

    """
    if text == BRANCHES:
        return BRANCHES
    if not str(text).isdecimal():
        raise click.BadParameter(f"{text!r} is not a number of streams: expected 0, 1, 2, … or {BRANCHES}")
    return int(text)


class Minutes(click.FloatRange):
    """Accept minutes up to a year. `FloatRange` would accept nan."""

    def __init__(self, *, min_open: bool) -> None:
        super().__init__(0, 365 * 24 * 60, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of minutes.

        Raises:
            click.BadParameter: The value is not a number or not in the range.

        """
        minutes: float = super().convert(value, param, ctx)
        if math.isnan(minutes):
            self.fail(f"{value!r} is not a number", param, ctx)
        return minutes


class Spelling(click.Choice):  # type: ignore[type-arg]  # older versions of click lack the parameter
    """Accept one of some words and return the value that it stands for. The value itself is accepted, too."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(list(values))
        self.values = values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value that the word stands for.

        Raises:
            click.BadParameter: The word is unknown.

        """
        return value if value in self.values.values() else self.values[super().convert(value, param, ctx)]


def quantity(name: str, example: str, units: Mapping[str, float]) -> Callable[[str], float]:
    """Return a function that parses a positive number and its unit, in any case, such as 8GB.

    The result is in the unit whose factor is 1. The function raises `click.BadParameter` for other texts.
    """
    factors = {unit.lower(): factor for unit, factor in units.items()}

    def parse(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z/]+)", text.strip(), re.IGNORECASE)
        value = float(match[1]) * factors.get(match[2].lower(), 0.0) if match else 0.0
        if not 0 < value < math.inf:
            expected = f"expected a number and {', '.join(units)}, such as {example}"
            raise click.BadParameter(f"{text!r} is not a {name}: {expected}")
        return value

    parse.__name__ = name  # click shows it as the placeholder of the value
    return parse


class Option(click.Option):
    """Define an option with a group, which `Command` shows as a heading, and former spellings."""

    def __init__(self, *arguments: Any, group: str = OPTIONS, old: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group, self.old = group, old


class ListOption(Option):
    """Define an option with one or more comma-separated values: `--k 1,4`. Repeating it adds values."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, multiple=True, **settings)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[str, ...]:
        """Return the values, split at commas.

        Raises:
            click.BadParameter: There is no value between the commas.

        """
        given: tuple[str, ...] = super().type_cast_value(ctx, value) or ()
        values = tuple(part.strip() for text in given for part in text.split(",") if part.strip())
        if given and not values:
            text = " ".join(given)
            raise click.BadParameter(f"expected one or more values separated by commas, got {text!r}", ctx, self)
        return values


class Command(click.Command):
    """Define a command whose help has a section for each group of options, and that accepts former spellings."""

    allow_extra_args = True  # `parse_args` refuses them with a better message

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", OPTIONS), []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A wrong setting of a cell or device is a command line error, with exit code 2."""
        try:
            return super().invoke(ctx)
        except (CellError, DeviceError) as error:
            raise click.UsageError(str(error), ctx) from error
        except ValueError as error:  # whether it occurs depends on the shapes within the network
            if "more than 1 value per channel" not in str(error):
                raise
            where = "; ".join(map(str, (error, *getattr(error, "__notes__", ()))))
            fix = "use a larger --batch-size or --image-size"
            raise click.UsageError(f"BatchNorm cannot normalise a single value ({where}): {fix}", ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. For leftover words, explain the syntax of several values: `--k 1 4` leaves one over."""
        super().parse_args(ctx, list(self._in_new_spelling(args)))
        if ctx.args:
            left = " ".join(ctx.args)
            ctx.fail(f"unexpected {left!r}: separate several values of an option by commas, such as 1,4")
        return ctx.args

    def _in_new_spelling(self, words: Iterable[str]) -> Iterable[str]:
        """Yield the words of a command line with former spellings of options replaced, and print a notice for each."""
        renamed = {option.old: option for option in self.params if isinstance(option, Option) and option.old}
        for word in words:
            flag, equals, value = word.partition("=")
            if flag not in renamed:
                yield word
                continue
            option = renamed[flag]
            if is_first_process():
                values = f" ({', '.join(option.type.values)})" if isinstance(option.type, Spelling) else ""
                new = f"{option.opts[-1]}{values}"
                click.echo(f"NOTE: {flag} is now {new}; the old spelling works until the next release", err=True)
            yield f"{option.opts[-1]}{equals}{value}"


def options_of(
    kind: Any, parameter: str, *, defaults: Mapping[str, Any] | None = None, names: Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Add an option to a command for every described field of a dataclass.

    Args:
        kind: The dataclass.
        parameter: Parameter of the command that receives the values.
        defaults: Constant defaults by name. The parameter then receives a dictionary, with None for options that were
            not given and whose default follows a rule. Without `defaults`, those of the fields hold, and the parameter
            receives an instance.
        names: Names of the fields in the order of the help; None for all.

    """
    described = {name: settings_of(kind)[name] for name in names or settings_of(kind)}
    hints = typing.get_type_hints(kind)
    constants = defaults or {field.name: field.default for field in dataclasses.fields(kind)}

    def decorate(command: Callable[..., None]) -> Any:
        @functools.wraps(command)
        def with_values(**values: Any) -> None:
            chosen: Any = {name: values.pop(name) for name in described}
            if defaults is None:
                try:
                    chosen = kind(**{name: value for name, value in chosen.items() if value not in (None, ())})
                except ValueError as error:
                    raise click.UsageError(str(error)) from error
            command(**{parameter: chosen}, **values)

        for name, setting in reversed(described.items()):
            kind_of_value = _type(setting, hints[name], checked_later=defaults is not None)
            with_values = _option(name, setting, kind_of_value, constants.get(name))(with_values)
        return with_values

    return decorate


def _option(name: str, setting: Setting, kind: Any, default: Any) -> Callable[[Any], Any]:
    """Return the click option of a field from the click type of its values and its constant default."""
    settings: dict[str, Any] = {"help": setting.text, "group": setting.group, "old": setting.old, "type": kind}
    if setting.rule:
        usual = spell(default, setting) if "{default}" in setting.rule else ""
        settings["show_default"] = setting.rule.replace("{default}", usual)
    elif kind is bool:
        settings["is_flag"] = True
    elif default not in (None, ""):
        settings |= {"default": default, "show_default": spell(default, setting) if setting.spellings else True}
    if setting.bare is not None:
        settings |= {"is_flag": False, "flag_value": setting.bare}
    if setting.metavar:
        settings["metavar"] = setting.metavar
    if setting.whole:
        settings["multiple"] = True
    return click.option(name, *flags_of(name, setting), cls=ListOption if kind is LIST else Option, **settings)


def _type(setting: Setting, hint: Any, *, checked_later: bool) -> Any:
    """Return the click type of an option from the type of its field. A cell checks the values of its settings later."""
    if setting.spellings:
        return Spelling(setting.spellings)
    if setting.choices and not checked_later:
        return click.Choice(setting.choices)
    if setting.parse:
        return setting.parse
    if setting.minutes:
        return Minutes(min_open=setting.least is None)
    if isinstance(hint, types.UnionType) and type(None) in hint.__args__:  # X | None
        hint = hint.__args__[0]
    if hint is Path:
        return FOLDER
    if hint is int and setting.least is not None and not checked_later:
        return click.IntRange(setting.least, setting.most)
    if hint == tuple[str, ...]:
        return str if setting.whole else LIST
    return {tuple[int, ...]: numbers, int | str: streams}.get(hint, hint)
