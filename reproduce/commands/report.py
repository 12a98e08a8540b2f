"""`report`: the page with every table and figure."""

from pathlib import Path

import click
from click.core import ParameterSource

from reproduce.commands.common import CORES, FILE, RECORDS, check_writable
from reproduce.records.storage import StorageError, StorageFullError


@click.command()
@RECORDS
@click.option(
    "--output",
    type=FILE,
    default=Path("reports/index.html"),
    show_default=True,
    help="The page to write.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=min(8, CORES), show_default="the CPU cores, at most 8", help="Processes."
)
@click.option("--open", "opened", is_flag=True, help="Show the page in the browser.")
@click.pass_context
def report(context: click.Context, root: Path, output: Path, jobs: int, opened: bool) -> None:
    """Write the report: one page with every table and figure, from the records that are there."""
    # Without any run the page shows what is published; but a folder that was named and is not there is a slip.
    if not root.exists() and context.get_parameter_source("root") is not ParameterSource.DEFAULT:
        raise click.UsageError(f"there is no folder {root}: --records is the one that was given to `run`")
    check_writable(output.parent, "--output")
    from reproduce.report import build  # pandas, matplotlib and jinja2 take seconds to import

    try:
        build(root, output, jobs=jobs)
    except StorageFullError as error:
        raise click.ClickException(f"no room to write {output}; the page of before, if any, is as it was") from error
    except StorageError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    click.echo(f"wrote {output}; to look at it: {output.resolve().as_uri()}")
    if opened:
        click.launch(output.resolve().as_uri())
