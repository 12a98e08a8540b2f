"""What click lacks: options in named groups, and options of several values separated by spaces or commas."""

from collections.abc import Callable, Sequence
from typing import Any

import click


class GroupedOption(click.Option):
    """An option that `GroupedCommand` shows under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class ListOption(GroupedOption):
    """An option of one value or more: `--k 1 4`, `--k 1,4` and `--k 1 --k 4` are the same. Needs a `GroupedCommand`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, multiple=True, **settings)

    def type_cast_value(self, ctx: click.Context, value: Any) -> tuple[str, ...]:
        """The values, split at commas. Raises: click.BadParameter: there is nothing but commas."""
        given: tuple[str, ...] = super().type_cast_value(ctx, value) or ()
        values = tuple(part.strip() for text in given for part in text.split(",") if part.strip())
        if given and not values:
            raise click.BadParameter(f"no value in {' '.join(given)!r}", ctx, self)
        return values


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of options, in the order of their first option."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with every value of a `ListOption` after a name of its own, as click knows it."""
        names = {name for option in self.params if isinstance(option, ListOption) for name in option.opts}
        return super().parse_args(ctx, spread(args, names))


def spread(arguments: Sequence[str], names: set[str]) -> list[str]:
    """`--k 1 4` as `--k 1 --k 4`, for options of these names; what follows `--` stays as it is."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    result: list[str] = []
    current, first = "", False  # the list option whose values are being read; whether none has come yet
    for argument in arguments[:end]:
        name, equals, _ = argument.partition("=")
        if argument.startswith("-"):
            current, first = (name if name in names else ""), not equals
            result.append(argument)
        elif current and not first:
            result += [current, argument]
        else:
            first = False
            result.append(argument)
    return [*result, *arguments[end:]]


def grouped(group: str, cls: type[GroupedOption] = GroupedOption) -> Callable[..., Callable[[Any], Any]]:
    """`click.option` for one group; defaults are shown."""

    def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(*names, cls=cls, group=group, **{"show_default": True, **settings})

    return option
