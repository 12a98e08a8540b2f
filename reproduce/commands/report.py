"""`report`: the page with every table and figure."""

from pathlib import Path

import click

from reproduce import records
from reproduce.commands.common import FOLDER


@click.command()
@click.option("--records", "root", type=FOLDER, default=records.DEFAULT_ROOT, show_default=True, help="Their folder.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("reports/index.html"),
    show_default=True,
    help="The page to write.",
)
def report(root: Path, output: Path) -> None:
    """Write the report: one page with every table and figure, from the records that are there."""
    from reproduce.report import build  # pandas, seaborn and jinja2 take seconds to import

    build(root, output)
    click.echo(f"wrote {output}")
