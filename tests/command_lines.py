"""Check that command lines in texts and in plans are valid, without running them."""

from importlib.util import find_spec

import click

from reproduce.commands.cli import main as reproduce
from tests.conftest import ROOT

ELLIPSIS = "…"


def check_reproduce(arguments: list[str]) -> None:
    """Check that the command exists with these options.

    Raises:
        click.UsageError: An option is unknown.

    """
    command: click.Command = reproduce
    arguments = [word for word in arguments if word != "$@"]  # placeholders of a script
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    if set(arguments) <= {"-h", "--help", ELLIPSIS}:
        return
    _, left, _ = command.make_parser(click.Context(command)).parse_args(arguments)
    assert not left, f"{command.name} does not take {left}"


def check_benchmark(module: str, arguments: list[str]) -> None:
    """Check that the script exists, and that its options exist somewhere in the benchmarks."""
    assert find_spec(module) is not None
    sources = "".join(file.read_text("utf-8") for file in (ROOT / "benchmarks").rglob("*.py"))
    for option in arguments:
        assert not option.startswith("--") or option == "--help" or f'"{option}"' in sources, option


def check_module(words: list[str]) -> None:
    """Check that the words after `-m` are a valid command."""
    module, *arguments = words
    if module == "reproduce":
        check_reproduce(arguments)
    elif module.startswith("benchmarks.") and ELLIPSIS not in module:
        check_benchmark(module, arguments)
    else:
        assert module in {
            "reproduce.drawing",
            "tests.bitwise",
            "tests.mutants",
            "tests.test_first_run",
            "tests.golden.dump",
            "tests.petra_core.errors",
            "tests.reproduce.errors",
            "tests.reproduce.exhibits.situations",
            "venv",
            f"benchmarks.{ELLIPSIS}",
        }
