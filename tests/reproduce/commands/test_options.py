"""Test that several values of an option are separated by commas."""

import click
from click.testing import CliRunner

from reproduce.commands.options import Command, ListOption, Option


@click.command(cls=Command)
@click.argument("scale")
@click.option("--k", "-k", cls=ListOption, group="Which")
@click.option("--models", cls=ListOption, group="Which")
@click.option("--dry-run", cls=Option, group="How", is_flag=True)
def command(scale, k, models, dry_run):
    click.echo(f"{scale} {k} {models} {dry_run}")


def test_list_option_forms_and_help_sections():
    """List options accept commas and repetition, refuse values separated by spaces, and have help sections."""
    for arguments in (
        ["paper", "--k", "1,4", "--models", "revnet18", "--dry-run"],
        ["paper", "--k=1,4", "--models=revnet18", "--dry-run"],
        ["paper", "-k", "1", "-k", "4", "--models", "revnet18", "--dry-run"],
        ["--models", "revnet18", "--k", "1, 4,", "--dry-run", "paper"],
    ):
        result = CliRunner().invoke(command, arguments)
        assert result.output == "paper ('1', '4') ('revnet18',) True\n"
    text = CliRunner().invoke(command, ["--help"]).output
    assert text.index("Which:") < text.index("--models") < text.index("How:") < text.index("--dry-run")
