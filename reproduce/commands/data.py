"""Define the commands `data list`, `data prepare` and `data check`.

Modules that convert and verify are imported where they are used, so that listing, help and refusals stay fast.
"""

import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from reproduce.cells import catalogue
from reproduce.cells.base import CellError, near_matches
from reproduce.cells.catalogue import DEFAULT_ROOT, IMAGENET, Dataset
from reproduce.commands.common import CORES, print_lines
from reproduce.commands.options import FOLDER, Command, options_of
from reproduce.data import corpus, manifest
from reproduce.data.errors import DataError
from reproduce.data.manifest import Findings, Manifest, Progress
from reproduce.text import some

DATA_ROOT = click.option(
    "--data-root",
    "root",
    type=FOLDER,
    default=DEFAULT_ROOT,
    show_default=True,
    help="Folder of prepared data sets, one subfolder each.",
)


def find_dataset(name: str) -> Dataset:
    """Return the data set of that name.

    Raises:
        click.BadParameter: No data set has this name, or it needs no preparation.

    """
    try:
        dataset = catalogue.by_name(name)
    except CellError:
        prepared = [name for name, dataset in catalogue.DATASETS.items() if not dataset.built_in]
        raise click.BadParameter(f"there is no data set {name!r}; {near_matches(name, prepared)}") from None
    if dataset.built_in:
        raise click.BadParameter(f"{dataset.title} come with a dependency and need no preparation or check")
    return dataset


@click.group()
def data() -> None:
    """Manage data sets: list them, prepare them for the loaders, check prepared ones."""


@data.command("list")
@DATA_ROOT
def list_command(root: Path) -> None:
    """Show every data set, its state, and how to get it."""
    click.echo(f"FFCV is {'installed' if catalogue.ffcv_installed() else 'not installed'}; prepared data sets: {root}")
    for dataset in catalogue.DATASETS.values():
        click.echo()
        click.secho(dataset.name, bold=True, nl=False)
        click.echo(f"  {dataset.title}: {_contents(dataset)}")
        click.echo(f"  {_state(dataset, root)}")


def _contents(dataset: Dataset) -> str:
    if not dataset.text:
        size = f"{dataset.image_size} x {dataset.image_size}"
        return f"{dataset.num_classes} classes, {dataset.train_samples:,} + {dataset.test_samples:,} images, {size}"
    try:
        here = corpus.pydoc()
    except DataError as error:
        return str(error)
    return (
        f"text for masked language modelling, {len(here.train):,} + {len(here.test):,} bytes in this Python "
        f"({platform.python_version()}), SHA-256 {here.sha256}"
    )


def _state(dataset: Dataset, root: Path) -> str:
    if dataset.built_in:
        return f"ready: comes with {'Python' if dataset.text else 'a dependency'}"
    folder = root / dataset.name
    try:
        if not manifest.is_in(folder):
            return f"not prepared. {dataset.how_to_get}"
        prepared = manifest.read(folder, dataset.name)
    except DataError as error:
        return f"DAMAGED: {error}"
    if problems := manifest.problems(folder, prepared, contents=False):
        return f"DAMAGED: {some(problems)}"
    obstacles = {name: manifest.obstacle(folder, prepared, name) for name in dataset.loaders}
    loaders = [name for name, obstacle in obstacles.items() if obstacle is None]
    if not loaders:
        return f"NOT READY: {some(list(map(str, obstacles.values())))}"
    return f"ready for {' and '.join(loaders)}, {_status(prepared)}"


@data.command("prepare", cls=Command)
@click.argument("dataset", metavar="NAME", type=find_dataset)
@click.option("--source", type=FOLDER, help="Folder with the published files of the data set.")
@DATA_ROOT
@click.option(
    "--download",
    is_flag=True,
    help="Download the data set first (CIFAR) and keep it in --source [default: DATA_ROOT/downloads].",
)
@options_of(manifest.Options, "options")
def prepare_command(
    dataset: Dataset, source: Path | None, root: Path, download: bool, options: manifest.Options
) -> None:
    """Verify the data set NAME and convert it for the loaders: cifar10, cifar100, imagenet32 or imagenet.

    The folder appears only when all of it is complete. If the command is stopped, run it again; it starts from the
    beginning.
    """
    if dataset is not IMAGENET and (options.only_list or options.workers):
        raise click.UsageError("--no-beton and --workers apply only to imagenet: other data sets have no image files")
    if download and not dataset.downloadable:
        raise click.UsageError(f"{dataset.title} cannot be downloaded without an account. {dataset.how_to_get}")
    if source is None and not download:
        raise click.UsageError(f"--source is missing: the folder that contains {dataset.title}. {dataset.how_to_get}")
    from reproduce.data import cifar
    from reproduce.data.prepare import prepare

    options = replace(options, reason=options.reason.strip(), workers=options.workers or CORES)
    with _errors():
        if download:
            source = source or root / "downloads"
            cifar.download(dataset, source)
        assert source is not None
        made, now = prepare(dataset, source, root, options, progress_bar)
        folder = root / dataset.name
        click.echo(f"{folder} {'was made' if now else 'exists already, from the same source'}: {_status(made)}")
        _describe(made.findings)
        for name, file in made.files.items():
            click.echo(f"  {name}  {file.bytes:,} bytes  SHA-256 {file.sha256}")


@data.command("check")
@click.argument("datasets", metavar="[NAME]...", type=find_dataset, nargs=-1)
@DATA_ROOT
def check_command(datasets: Sequence[Dataset], root: Path) -> None:
    """Read prepared data sets completely and compare them with their manifests: NAME, or all prepared ones."""
    with _errors():
        chosen = datasets or [dataset for name, dataset in catalogue.DATASETS.items() if manifest.is_in(root / name)]
        if not chosen:
            raise click.ClickException(f"{root} contains no prepared data set; `data list` shows the data sets")
        whole = [_check(dataset, root / dataset.name) for dataset in chosen]  # all of them, even after a damaged one
    sys.exit(0 if all(whole) else 1)


def _check(dataset: Dataset, folder: Path) -> bool:
    if not manifest.is_in(folder):
        click.secho(f"{dataset.name}: not prepared. {dataset.how_to_get}", fg="red", bold=True, err=True)
        return False
    try:
        prepared = manifest.read(folder, dataset.name)
        with progress_bar(dataset.name, sum(file.bytes for file in prepared.files.values()), "B") as progress:
            problems = manifest.problems(folder, prepared, contents=True, progress=progress)
        if not problems and not prepared.has_beton:  # the listed files are elsewhere
            problems += manifest.find_changes(folder, prepared)
        advice = catalogue.advise_preparation(folder, prepared.source)
    except DataError as error:  # its message includes the fix
        problems, advice = [str(error)], ""
    if not problems:
        click.echo(f"{dataset.name}: complete, {_status(prepared)}")
        return True
    click.secho(f"{dataset.name}: DAMAGED", fg="red", bold=True, err=True)
    print_lines(problems)
    if advice:
        click.echo(f"  {advice}", err=True)
    return False


def _status(prepared: Manifest) -> str:
    if prepared.official:
        return "official"
    return f"NOT OFFICIAL: {'; '.join(prepared.findings.deviations)} (reason given: {prepared.reason})"


def _describe(findings: Findings) -> None:
    for name, split in findings.splits.items():
        counts = split.histogram
        each = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
        click.echo(f"  {name}: {split.samples:,} images, {len(counts):,} classes of {each}")
    means, deviations = (
        ", ".join(f"{value:.4f}" for value in values) for values in (findings.mean, findings.deviation)
    )
    click.echo(f"  channels: mean {means}; standard deviation {deviations}")
    for note in findings.notes:
        click.echo(f"  {note}")


@contextmanager
def progress_bar(what: str, total: int, unit: str) -> Iterator[Progress]:
    """Show a progress bar on stderr if it is a terminal, otherwise print one line."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        click.echo(f"{what} {total:,} {unit}", err=True)
    with tqdm(total=total, desc=what, unit=unit, unit_scale=True, leave=False, disable=None) as bar:
        yield bar.update


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # click handles it
        raise
    except (DataError, OSError) as error:  # an unwritable folder, for example
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("stopped; no partial files are left, and the same command starts again", err=True)
        raise  # the group of commands ends with the exit code
