"""Define `report`: write the page with every table and figure."""

from pathlib import Path

import click
from click.core import ParameterSource

from reproduce.commands.common import RECORDS, check_records, check_writable
from reproduce.commands.options import FILE
from reproduce.records.storage import StorageFullError


@click.command()
@RECORDS
@click.option("--output", type=FILE, default=Path("reports/index.html"), show_default=True, help="File of the page.")
@click.option("--readme", type=FILE, help="Also write the results and pictures of this README.")
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@click.pass_context
def report(context: click.Context, root: Path, output: Path, readme: Path | None, opened: bool) -> None:
    """Write the report: one page with every table and figure of the existing records."""
    # Without any run, the page shows the published values. But a folder that was named and does not exist is a mistake.
    if context.get_parameter_source("root") is not ParameterSource.DEFAULT:
        check_records(root)
    check_writable(output.parent, "--output")
    if readme is not None and not readme.is_file():
        raise click.UsageError(f"--readme: there is no file {readme}")
    click.echo(f"reading the records of {root}, to write {output}", err=True)
    from reproduce.report import ReadmeError, build

    try:
        build(root, output, readme=readme)
    except StorageFullError as error:
        raise click.ClickException(f"no space left to write {output}; an existing page is unchanged") from error
    except ReadmeError as error:
        raise click.UsageError(f"--readme: {error}") from error
    click.echo(f"wrote {output}; open {output.resolve().as_uri()}")
    if opened:
        click.launch(output.resolve().as_uri())
