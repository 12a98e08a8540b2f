"""Extend click: options in named groups, and options with several comma-separated values."""

import math
from collections.abc import Callable
from typing import Any

import click

from reproduce.cells.base import CellError
from reproduce.measures.run_options import BRANCHES
from reproduce.running.devices import DeviceError


class GroupedOption(click.Option):
    """Define an option that `GroupedCommand` shows under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class ListOption(GroupedOption):
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
            raise click.BadParameter(f"no value in {' '.join(given)!r}", ctx, self)
        return values


class Minutes(click.FloatRange):
    """Accept minutes between 0 and a year. `FloatRange` would accept nan."""

    def __init__(self, *, min_open: bool = False) -> None:
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


class Streams(click.ParamType[int | str]):
    """Accept a number of CUDA streams of at least 0, or `BRANCHES`."""

    name = "streams"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or `BRANCHES`.

        Raises:
            click.BadParameter: The value is neither.

        """
        if value == BRANCHES:
            return BRANCHES
        if not str(value).isdecimal():
            self.fail(f"{value!r} is not a number of streams: expected 0, 1, 2, … or {BRANCHES}", param, ctx)
        return int(value)


class GroupedCommand(click.Command):
    """Define a command whose help has a section for each group of options, in the order of their first option."""

    allow_extra_args = True  # `parse_args` refuses them with a better message

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A wrong setting of a cell or device is a command line error, with exit code 2."""
        try:
            return super().invoke(ctx)
        except (CellError, DeviceError) as error:
            raise click.UsageError(str(error), ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. For leftover words, explain the syntax of several values: `--k 1 4` leaves one over."""
        super().parse_args(ctx, args)
        if ctx.args:
            left = " ".join(ctx.args)
            ctx.fail(f"unexpected {left!r}: separate several values of an option by commas, as in --k 1,4")
        return ctx.args


def grouped(group: str, cls: type[GroupedOption] = GroupedOption) -> Callable[..., Callable[[Any], Any]]:
    """Return a `click.option` for one group, with defaults shown."""

    def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(*names, cls=cls, group=group, **{"show_default": True, **settings})

    return option
