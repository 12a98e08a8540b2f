"""The command line: `run` a grid, `train` one cell by hand, write the `report`, see to the `data`.

Exit codes: 0 all that was asked for is there; 1 something failed; 2 the command line is wrong; 130 stopped by Ctrl-C
(the same command goes on).
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import torch

from petra_core import CheckpointError, methods
from petra_core.recipe import learning_rate
from reproduce import cells, records, scales, summary
from reproduce.cells import Cell, CellError, TrainingCell
from reproduce.data import catalogue
from reproduce.data.commands import data
from reproduce.data.errors import DataError
from reproduce.execution import Context, Observer, Stopped, execute
from reproduce.interrupts import Interrupt
from reproduce.options import GroupedCommand, grouped
from reproduce.progress import Observers, TrainingBar
from reproduce.records import LockedError, Record, RecordError, Status
from reproduce.runner import Outcome, Settings, run_grid
from reproduce.scales import Scale
from reproduce.storage import StorageFullError

T = TypeVar("T")

FOLDER = click.Path(file_okay=False, path_type=Path)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Reproduce PETRA (arXiv 2406.02052) and the methods it competes with."""


main.add_command(data)

# --- run


@main.command()
@click.argument("scale", metavar="SCALE")
@click.option("--jobs", type=click.IntRange(1), show_default="cores / threads", help="Worker processes.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of each worker.")
@click.option("--device", default="cpu", show_default=True, help="Device to train on, such as cuda:0.")
@click.option("--records", "root", type=FOLDER, default=records.DEFAULT_ROOT, show_default=True, help="Their folder.")
@click.option(
    "--only",
    metavar="SETTING=VALUE[,VALUE]",
    multiple=True,
    help="Run only cells with these values, such as --only method=petra,dsp --only accumulation=1. Repeatable.",
)
@click.option(
    "--checkpoint-minutes", type=click.FloatRange(0), default=5, show_default=True, help="Between checkpoints."
)
@click.option("--retry-failed", is_flag=True, help="Run cells again that diverged or ran out of memory.")
@click.option(
    "--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, show_default=True, help="Folder of prepared data sets."
)
@click.option(
    "--data-workers", type=click.IntRange(1), default=1, show_default=True, help="Decode images, of each worker."
)
@click.option("--dry-run", is_flag=True, help="Only list the cells and their states.")
def run(
    scale: str,
    jobs: int | None,
    threads: int,
    device: str,
    root: Path,
    only: Sequence[str],
    checkpoint_minutes: float,
    retry_failed: bool,
    data_root: Path,
    data_workers: int,
    dry_run: bool,
) -> None:
    """Run all cells of SCALE that have no result yet.

    Stopped in any way, the same command goes on where it was, and ends with the same records.

    Scales: smoke.
    """
    grid = _checked(lambda: scales.by_name(scale))
    chosen = _checked(lambda: select(grid.cells, only))
    if dry_run:
        sys.exit(_list_states(chosen, root))
    settings = Settings(
        root=root,
        jobs=jobs or max(1, CORES // threads),
        threads=threads,
        device=str(_device(device)),
        checkpoint_seconds=60 * checkpoint_minutes,
        data_root=data_root,
        data_workers=data_workers,
    )
    outcome = run_grid(chosen, settings, retry_failed=retry_failed)
    _conclude(grid, outcome, root)


def select(grid: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells of a grid that have one of the values given for each setting, as `setting=value,value`.

    Raises:
        CellError: a setting that no cell has, or values that none has.

    """
    chosen = list(grid)
    for condition in only:
        setting, equals, wanted = condition.partition("=")
        known = {key: None for cell in grid for key in cell.to_dict()}
        if not equals or setting not in known:
            raise CellError(f"--only {condition}: {cells.near_matches(setting, known)} (as SETTING=VALUE)")
        values = {value.strip().lower().replace("-", "_") for value in wanted.split(",")}
        there = {str(cell.to_dict().get(setting)).lower() for cell in grid}
        unknown = sorted(values - there)
        if unknown:
            near = cells.near_matches(unknown[0], there)
            raise CellError(f"--only {condition}: no cell has {setting} {unknown[0]}; {near}")
        chosen = [cell for cell in chosen if str(cell.to_dict().get(setting)).lower() in values]
    if not chosen:
        raise CellError(f"no cell fulfils {' and '.join(only)}")
    return chosen


def _list_states(chosen: Sequence[Cell], root: Path) -> int:
    problems = 0
    for cell in chosen:
        try:
            state = str(Record.of(cell, root).state())
        except RecordError as error:
            problems, state = problems + 1, f"PROBLEM {error}"
        click.echo(f"{cell.name}: {state}")
    return 1 if problems else 0


def _conclude(grid: Scale, outcome: Outcome, root: Path) -> NoReturn:
    click.echo()
    click.echo(summary.table(outcome, root))
    short = summary.shortfalls(grid, outcome, root)
    if short:
        at = " and ".join(str(k) for k in grid.target_accumulations)
        _warn(f"{len(short)} cells at k = {at} are not above {grid.target_accuracy:g} % test accuracy", short)
    diverged = [cell.slug for cell, state in outcome.states.items() if state.reason == "diverged"]
    if diverged:
        _warn(f"{len(diverged)} cells diverged, which is their result", diverged)
    if outcome.problems:
        _warn(
            f"{len(outcome.problems)} cells have no result",
            [f"{c.slug}: {text}" for c, text in outcome.problems.items()],
        )
    unfinished = [f"{cell.slug}: {state}" for cell, state in outcome.states.items() if not state.final]
    if unfinished:
        _warn(f"{len(unfinished)} cells are unfinished; the same command goes on with them", unfinished)
    memory = [cell.slug for cell, state in outcome.states.items() if state.reason == "out of memory"]
    if memory:
        _warn(f"{len(memory)} cells ran out of memory; --retry-failed tries again", memory)
    if not short and outcome.complete:
        click.echo(f"\nAll {len(outcome.states)} cells have a result, and every one is as good as expected.")
    sys.exit(outcome.exit_code)


def _warn(title: str, lines: Sequence[str], shown: int = 12) -> None:
    click.secho(f"\nWARNING: {title}:", fg="red", bold=True, err=True)
    for line in lines[:shown]:
        click.echo(f"  {line}", err=True)
    if len(lines) > shown:
        click.echo(f"  … and {len(lines) - shown} more", err=True)


# --- report


@main.command()
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


# --- train

NETWORK, DATA, METHOD, RECIPE, RUN = (
    grouped(name) for name in ("Network", "Data", "Method", "Recipe", "Where and how")
)
DEFAULTS = scales.digits_cell(method=methods.PETRA, accumulation=4)


@main.command(cls=GroupedCommand)
@NETWORK(
    "--model",
    default=DEFAULTS.model,
    help="revnet18, 34, 50, resnet18, 34, 50, invertible_revnet18, 34, 50, or chain<n>: n reversible blocks.",
)
@NETWORK(
    "--stem",
    show_default="that of the data set, stride1",
    help="cifar, imagenet32, imagenet; of a chain stride1, 2 or 4.",
)
@NETWORK("--width", default=DEFAULTS.width, help="Channels of the first blocks, per stream (64 in the paper).")
@DATA("--dataset", default=DEFAULTS.dataset, help=f"{', '.join(catalogue.DATASETS)}; `data list` shows what is there.")
@DATA("--image-size", type=int, show_default="8 for digits, 224 for imagenet, 32", help="Height and width in pixels.")
@DATA("--batch-size", default=DEFAULTS.batch_size, help="Samples of a micro-batch.")
@DATA(
    "--augmentation",
    show_default="the paper's, none for digits",
    help="none, flip_crop (flip, crop after padding by 4), or random_resized_crop (and flip; imagenet).",
)
@DATA(
    "--loader", show_default="ffcv where it is installed", help="What delivers the batches: ffcv, memory, torchvision."
)
@DATA("--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, help="Folder of prepared data sets.")
@DATA("--data-workers", type=click.IntRange(1), default=1, help="Threads or processes that decode images.")
@METHOD("--method", default=DEFAULTS.method, help=f"{', '.join(method.name for method in methods.ALL)}.")
@METHOD("-k", "--accumulation", default=DEFAULTS.accumulation, help="Micro-batches of an update, 1 to 32.")
@RECIPE("--epochs", default=DEFAULTS.epochs, help="Passes over the training set.")
@RECIPE("--learning-rate", type=float, show_default="0.1 * batch size * k / 256", help="After warm-up.")
@RECIPE("--warmup-epochs", default=DEFAULTS.warmup_epochs, help="Linear from 0; a fraction is allowed.")
@RECIPE(
    "--drops",
    default="",
    show_default="none",
    metavar="EPOCHS",
    help="Epochs after which the rate drops, such as 150,225.",
)
@RECIPE("--drop-factor", default=DEFAULTS.drop_factor, help="The rate is multiplied by this at every drop.")
@RECIPE("--momentum", default=DEFAULTS.momentum, help="Nesterov momentum; 0 for none.")
@RECIPE(
    "--weight-decay",
    type=float,
    show_default="the paper's: 1e-4 for both ImageNets, else 5e-4",
    help="Of weights, not of biases and BatchNorm.",
)
@RECIPE("--precision", default=DEFAULTS.precision, help="float32 or bf16 (autocast; streams stay float32).")
@RECIPE("--seed", default=DEFAULTS.seed, help="Of initialisation, order, augmentation and dropout.")
@RUN("--output", type=FOLDER, show_default="runs/<name of the cell>", help="For record and model.pt.")
@RUN("--device", default="cpu", help="Device to train on, such as cuda:0.")
@RUN("--threads", type=click.IntRange(1), default=CORES, show_default="cores", help="Threads of the processor.")
@RUN("--checkpoint-minutes", type=click.FloatRange(0), default=5, help="Between checkpoints within an epoch.")
@RUN("--retry-failed", is_flag=True, show_default=False, help="Go on from the last good checkpoint of a failed run.")
@RUN("--tensorboard", type=FOLDER, help="Folder for TensorBoard event files.")
@click.help_option("-h", "--help")
def train(
    output: Path | None,
    device: str,
    threads: int,
    checkpoint_minutes: float,
    retry_failed: bool,
    tensorboard: Path | None,
    data_root: Path,
    data_workers: int,
    **settings: Any,
) -> None:
    """Train one network with every setting an option.

    Leaves a record and model.pt (the plain sequential model's state dict, for torch.load with weights_only=True) in
    the output folder. Stopped in any way, the same command goes on, and ends with the same weights.
    """
    cell = _checked(lambda: cell_by_hand(settings))
    where = _device(device)
    torch.set_num_threads(threads)
    record = Record(output or Path("runs") / cell.name, cell)
    click.echo(f"{cell.slug} -> {record.path}", err=True)
    bar = TrainingBar(cell)
    observers: list[Observer] = [bar]
    if tensorboard is not None:
        from reproduce.event_files import EventFiles

        observers.append(EventFiles(tensorboard))
    with Interrupt() as interrupt:
        context = Context(
            device=where,
            should_stop=interrupt.requested,
            observer=Observers(*observers),
            checkpoint_seconds=60 * checkpoint_minutes,
            model_file=record.path / "model.pt",
            data_root=data_root,
            data_workers=data_workers,
        )
        try:
            if retry_failed and record.state().status is Status.FAILED:
                with record.lock():
                    record.retry()
            state = execute(record, context)
        except Stopped as stop:
            bar.close()
            click.echo(f"{stop}; saved, the same command goes on from there", err=True)
            sys.exit(interrupt.exit_code)
        except (RecordError, CheckpointError, DataError, LockedError, StorageFullError) as error:
            raise click.ClickException(str(error)) from error
        finally:
            bar.close()
    result = record.result() or {}
    if state.status is Status.FAILED:
        raise click.ClickException(f"{state}: {result['detail']}")
    click.echo(f"test accuracy {result['test_accuracy']:.2f} % -> {record.path}")


def cell_by_hand(settings: dict[str, Any]) -> TrainingCell:
    """A cell of the scale `custom` from the options of `train`, with what they leave open by rule.

    Raises:
        CellError: a setting is wrong.

    """
    values = dict(settings)
    is_chain = values["model"].startswith("chain")
    try:
        dataset = catalogue.by_name(values["dataset"])
    except ValueError as error:
        raise CellError(str(error)) from None
    defaults = {
        "stem": "stride1" if is_chain else dataset.stem,
        "image_size": dataset.image_size,
        "augmentation": dataset.augmentations[0],
        "loader": dataset.default_loader,
        "weight_decay": dataset.weight_decay,
    }
    values |= {name: value for name, value in defaults.items() if values[name] is None}
    try:
        values["drops"] = tuple(int(drop) for drop in values["drops"].split(",") if drop.strip())
    except ValueError:
        raise CellError(f"drops are epochs separated by commas, got {values['drops']!r}") from None
    if values["learning_rate"] is None:
        try:
            values["learning_rate"] = learning_rate(values["batch_size"], values["accumulation"])
        except ValueError as error:
            raise CellError(str(error)) from None
    return TrainingCell(scale="custom", **values)


def _checked(make: Callable[[], T]) -> T:
    """What `make` returns; a wrong setting ends the command with exit code 2."""
    try:
        return make()
    except CellError as error:
        raise click.UsageError(str(error)) from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise click.UsageError(f"there is no device {name!r}: cpu, or cuda:0 and the like ({error})") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise click.UsageError(f"there is no device {name!r}: this machine has {count} CUDA devices")
    return device
