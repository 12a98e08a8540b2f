"""Command-line options in named groups: click lists them all in one."""

from collections.abc import Callable
from typing import Any

import click


class GroupedOption(click.Option):
    """An option that `GroupedCommand` shows under a heading."""

    def __init__(self, *arguments: Any, group: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of options, in the order of their first option."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None:
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)


def grouped(group: str) -> Callable[..., Callable[[Any], Any]]:
    """`click.option` for one group; defaults are shown."""

    def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
        return click.option(*names, cls=GroupedOption, group=group, **{"show_default": True, **settings})

    return option
