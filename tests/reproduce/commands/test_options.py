"""Options of several values are joined by commas."""

import click
import pytest
from click.testing import CliRunner

from reproduce.commands.options import GroupedCommand, ListOption, grouped


@click.command(cls=GroupedCommand)
@click.argument("scale")
@grouped("Which", ListOption)("--k", "-k")
@grouped("Which", ListOption)("--models")
@grouped("How")("--dry-run", is_flag=True)
def command(scale, k, models, dry_run):
    click.echo(f"{scale} {k} {models} {dry_run}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["paper", "--k", "1,4", "--models", "revnet18", "--dry-run"],
        ["paper", "--k=1,4", "--models=revnet18", "--dry-run"],
        ["paper", "-k", "1", "-k", "4", "--models", "revnet18", "--dry-run"],
        ["--models", "revnet18", "--k", "1, 4,", "--dry-run", "paper"],
    ],
)
def test_the_same_choice_in_many_ways(arguments):
    result = CliRunner().invoke(command, arguments)
    assert result.output == "paper ('1', '4') ('revnet18',) True\n"


@pytest.mark.parametrize("arguments", [["paper", "--k", "1", "4", "--dry-run"], ["--k", "1", "4", "paper"]])
def test_values_apart_are_refused_with_the_form_that_is_meant(arguments):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert "several values of an option are joined by commas, as in --k 1,4" in result.output


def test_help_has_a_section_for_each_group():
    text = CliRunner().invoke(command, ["--help"]).output
    assert text.index("Which:") < text.index("--models") < text.index("How:") < text.index("--dry-run")
