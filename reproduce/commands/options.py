"""What click lacks: options in named groups, and options of several values, joined by commas."""

import math
from collections.abc import Callable
from typing import Any

import click

from reproduce.cells.base import CellError
from reproduce.measures.how import BRANCHES
from reproduce.running.devices import DeviceError


class GroupedOption(click.Option):
    """An option that `GroupedCommand` shows under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class ListOption(GroupedOption):
    """An option of one value or more, joined by commas: `--k 1,4`; given again, its values are added."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, multiple=True, **settings)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[str, ...]:
        """The values, split at commas. Raises: click.BadParameter: there is nothing but commas."""
        given: tuple[str, ...] = super().type_cast_value(ctx, value) or ()
        values = tuple(part.strip() for text in given for part in text.split(",") if part.strip())
        if given and not values:
            raise click.BadParameter(f"no value in {' '.join(given)!r}", ctx, self)
        return values


class Minutes(click.FloatRange):
    """Minutes, from none to a year: neither infinite nor, as `FloatRange` allows, nan."""

    def __init__(self, *, min_open: bool = False) -> None:
        super().__init__(0, 365 * 24 * 60, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises: click.BadParameter: it is none, or not within the range."""
        minutes: float = super().convert(value, param, ctx)
        if math.isnan(minutes):
            self.fail(f"{value!r} is not a number", param, ctx)
        return minutes


class Streams(click.ParamType[int | str]):
    """A number of CUDA streams from 0 on, or `BRANCHES`."""

    name = "streams"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or `BRANCHES`. Raises: click.BadParameter: it is neither."""
        if value == BRANCHES:
            return BRANCHES
        if not str(value).isdecimal():
            self.fail(f"{value!r} is no number of streams: expected 0, 1, 2, … or {BRANCHES}", param, ctx)
        return int(value)


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of options, in the order of their first option."""

    allow_extra_args = True  # until `parse_args` refuses them in better words

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
        """Do what was asked for; a wrong setting of a cell or device is one of the command line, with exit code 2."""
        try:
            return super().invoke(ctx)
        except (CellError, DeviceError) as error:
            raise click.UsageError(str(error), ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and where words are left over say how several values are given: `--k 1 4` leaves one."""
        super().parse_args(ctx, args)
        if ctx.args:
            left = " ".join(ctx.args)
            ctx.fail(f"unexpected {left!r}: several values of an option are joined by commas, as in --k 1,4")
        return ctx.args


def grouped(group: str, cls: type[GroupedOption] = GroupedOption) -> Callable[..., Callable[[Any], Any]]:
    """`click.option` for one group; defaults are shown."""

    def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(*names, cls=cls, group=group, **{"show_default": True, **settings})

    return option
