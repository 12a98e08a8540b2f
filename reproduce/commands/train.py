"""`train`: one cell by hand, every setting an option."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch

from petra_core import CheckpointError, methods
from petra_core.groups import PATIENCE
from reproduce import balance, devices, sharing, transformers
from reproduce.cells import OPTIMIZERS, CellError, TrainingCell
from reproduce.commands.common import (
    COMPILED,
    CORES,
    DATA_WORKERS,
    FOLDER,
    GRAPHS,
    check_writable,
    checked,
    data_workers_of,
)
from reproduce.data import catalogue
from reproduce.data.errors import DataError
from reproduce.execution import Context, Observer, Stopped, UnsupportedError, execute
from reproduce.interrupts import Interrupt
from reproduce.launch import LOST, Failure, first_to_tell, launch
from reproduce.locks import LockedError, LockLostError
from reproduce.options import GroupedCommand, grouped
from reproduce.progress import Observers, TrainingBar
from reproduce.rates import RULES
from reproduce.records import Record, RecordError, State, Status
from reproduce.scales import smoke
from reproduce.storage import StorageFullError
from reproduce.team import ALONE, Team
from reproduce.trace_file import TraceFile

NETWORK, DATA, METHOD, RECIPE, RUN = (
    grouped(name) for name in ("Network", "Data", "Method", "Recipe", "Where and how")
)
DEFAULTS = smoke.digits_cell(method=methods.PETRA, accumulation=4)


@click.command(cls=GroupedCommand)
@NETWORK(
    "--model",
    default=DEFAULTS.model,
    help="revnet18, 34, 50, resnet18, 34, 50, invertible_revnet18, 34, 50, chain<n> (n reversible blocks), or a "
    "transformer: revvit, revswin, revmvit or (for text) revroberta with _micro, _base and more.",
)
@NETWORK(
    "--stem",
    show_default="that of the data set, stride1, patches for the image size",
    help="cifar, imagenet32, imagenet; of a chain stride1, 2 or 4; of a transformer patch<P>: P x P pixels, or bytes.",
)
@NETWORK(
    "--width",
    type=int,
    show_default=f"{DEFAULTS.width}, a transformer's published",
    help="Channels of the first blocks, per stream (64 in the paper).",
)
@DATA("--dataset", default=DEFAULTS.dataset, help=f"{', '.join(catalogue.DATASETS)}; `data list` shows what is there.")
@DATA(
    "--image-size",
    type=int,
    show_default="8 for digits, 224 for imagenet, 32; of text 64",
    help="Height and width in pixels; of text the bytes of a sequence.",
)
@DATA("--batch-size", default=DEFAULTS.batch_size, help="Samples of a micro-batch.")
@DATA(
    "--augmentation",
    show_default="the paper's, none for digits",
    help="none, flip_crop (flip, crop after padding by 4), random_resized_crop (and flip; imagenet), or mask (text).",
)
@DATA(
    "--loader", show_default="ffcv where it is installed", help="What delivers the batches: ffcv, memory, torchvision."
)
@DATA("--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, help="Folder of prepared data sets.")
@DATA(
    "--data-workers",
    type=click.IntRange(1),
    show_default=f"cores / processes of the machine, at most {DATA_WORKERS}",
    help="Threads or processes that decode images.",
)
@METHOD("--method", default=DEFAULTS.method, help=f"{', '.join(method.name for method in methods.KNOWN)}.")
@METHOD("-k", "--accumulation", default=DEFAULTS.accumulation, help="Micro-batches of an update, 1 to 32.")
@METHOD(
    "--replicas",
    default=DEFAULTS.replicas,
    help="Networks side by side, each on micro-batches of its own, with one mean gradient: R times the batch.",
)
@RECIPE("--epochs", default=DEFAULTS.epochs, help="Passes over the training set.")
@RECIPE(
    "--learning-rate",
    type=float,
    show_default="0.1·s; adamw: 2.5e-4·√s",
    help="After warm-up; s is batch size · k · replicas / 256.",
)
@RECIPE("--warmup-epochs", default=DEFAULTS.warmup_epochs, help="Linear from 0; a fraction is allowed.")
@RECIPE(
    "--drops",
    default="",
    show_default="none",
    metavar="EPOCHS",
    help="Epochs after which the rate drops, such as 150,225.",
)
@RECIPE("--drop-factor", default=DEFAULTS.drop_factor, help="The rate is multiplied by this at every drop.")
@RECIPE("--optimizer", default=DEFAULTS.optimizer, help=f"{' or '.join(OPTIMIZERS)}; adamw is usual for transformers.")
@RECIPE("--momentum", default=DEFAULTS.momentum, help="Nesterov momentum, 0 for none; of adamw the first beta.")
@RECIPE(
    "--weight-decay",
    type=float,
    show_default="the paper's: 1e-4 for both ImageNets, else 5e-4; 0.01 for text",
    help="Of weights, not of biases and BatchNorm.",
)
@RECIPE("--precision", default=DEFAULTS.precision, help="float32, tf32 (CUDA), bf16 (autocast; streams stay float32).")
@RECIPE("--messages", default=DEFAULTS.messages, help="Between stages: float32, or bf16 (half the bytes, rounded).")
@RECIPE("--seed", default=DEFAULTS.seed, help="Of initialisation, order, augmentation and dropout.")
@RUN("--output", type=FOLDER, show_default="runs/<name of the cell>", help="For record and model.pt.")
@RUN("--device", default="cpu", help="Device to train on, such as cuda:0.")
@RUN("--threads", type=click.IntRange(1), show_default="cores / processes", help="Threads of each process.")
@RUN("--checkpoint-minutes", type=click.FloatRange(0), default=5, help="Between checkpoints within an epoch.")
@RUN("--retry-failed", is_flag=True, show_default=False, help="Go on from the last good checkpoint of a failed run.")
@RUN("--processes", type=click.IntRange(1), default=1, help="Share a replica's stages; the result is the same.")
@RUN(
    "--partition",
    default="even",
    metavar="SIZES",
    help="Stages of each process, such as 2,3,5, or 4x2,6: four over two processes that take turns, at the price of "
    "more delay, and six on a third; even: in number; balanced: in time, by timing them first.",
)
@RUN(
    "--patience",
    type=click.FloatRange(0, min_open=True),
    default=PATIENCE.total_seconds() / 60,
    metavar="MINUTES",
    help="A process that is silent for so long is lost.",
)
@RUN("--restarts", type=click.IntRange(0), default=3, help="Starts again after one of several processes was killed.")
@RUN("--cuda-graphs", type=click.IntRange(0), default=0, metavar="STREAMS", help=GRAPHS)
@RUN("--compile", "compiled", is_flag=True, show_default=False, help=COMPILED)
@RUN("--tensorboard", type=FOLDER, help="Folder for TensorBoard event files.")
@RUN(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for a Chrome trace of the first micro-batches after the pipeline has filled.",
)
@RUN("--trace-micro-batches", type=click.IntRange(1), default=16, help="How many of them.")
@click.help_option("-h", "--help")
def train(
    output: Path | None,
    device: str,
    threads: int | None,
    checkpoint_minutes: float,
    retry_failed: bool,
    processes: int,
    partition: str,
    patience: float,
    restarts: int,
    cuda_graphs: int,
    compiled: bool,
    tensorboard: Path | None,
    trace: Path | None,
    trace_micro_batches: int,
    data_root: Path,
    data_workers: int | None,
    **settings: Any,
) -> None:
    """Train one network with every setting an option.

    Leaves a record and model.pt (the plain sequential model's state dict, for torch.load with weights_only=True) in
    the output folder. Stopped in any way, the same command goes on, and ends with the same weights.
    """
    cell = checked(lambda: cell_by_hand(settings))
    if processes * cell.replicas > 1 and not sharing.launched():
        arguments = sys.argv[1:]
        if partition == "balanced":
            partition = checked(lambda: _balanced(cell, processes, device, threads))
            arguments += ["--partition", partition]  # the last one counts: all processes agree, after a new start too
        # A mistake is told once, not by every process.
        found = checked(lambda: sharing.replicated(cell, sharing.shares(cell, partition, processes)))
        checked(lambda: devices.check_graphs(cuda_graphs, [str(devices.check(device))]))
        _check_files(output or Path("runs") / found.name, trace, tensorboard)
        sys.exit(launch(processes * cell.replicas, arguments, restarts=restarts))
    where = checked(lambda: devices.check(sharing.local_device(device)))
    checked(lambda: devices.check_graphs(cuda_graphs, [str(where)]))
    torch.set_num_threads(threads or max(1, CORES // sharing.local_team_size()))
    shares = checked(lambda: _shares(cell, processes, partition))
    cell = checked(lambda: sharing.replicated(cell, shares))
    team = _join(cell, shares, where, timedelta(minutes=patience))
    record = Record(output or Path("runs") / cell.name, cell)
    observers: list[Observer] = []
    if team.leads:
        try:
            _check_files(record.path, trace, tensorboard)
        except click.UsageError as error:
            if team.size == 1:
                raise
            raise Failure(error.message) from None
        click.echo(f"{cell.slug} -> {record.path}{team.notice and f' ({team.notice})'}", err=True)
        observers.append(TrainingBar(cell))
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
            data_workers=data_workers or data_workers_of(sharing.local_team_size()),
            team=team,
            cuda_graphs=cuda_graphs,
            compiled=compiled,
            trace=None if trace is None else TraceFile(trace, trace_micro_batches, team),
        )
        state = _run(record, context, interrupt, retry_failed=retry_failed)
    result = record.result() or {}
    if state.status is Status.FAILED:
        raise Failure(f"{team.name}{state}: {result['detail']}")
    team.leave()
    if team.leads:
        click.echo(f"test accuracy {result['test_accuracy']:.2f} % -> {record.path}")


def _check_files(record: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """See before the work that what it leaves can be written. Raises: UsageError: it cannot."""
    for option, file in (("--output", record), ("--trace", trace), ("--tensorboard", tensorboard)):
        if file is not None:
            check_writable(file.parent, option)


def _balanced(cell: TrainingCell, processes: int, device: str, threads: int | None) -> str:
    """The stages of each process, by timing them now."""
    where = devices.check(device)
    each = threads or max(1, CORES // (processes * cell.replicas))
    found = ",".join(map(str, balance.balanced(cell, processes, where, threads=each)))
    click.echo(f"--partition balanced is {found}, from what the stages cost here and now", err=True)
    return found


def _shares(cell: TrainingCell, asked: int, partition: str) -> sharing.Shares:
    """Who has which stages. Raises: CellError: the network cannot be shared like that, or not among so many."""
    alone = not sharing.launched()
    if alone and partition == "balanced":
        partition = "even"  # of one process both are all
    return sharing.shares(cell, partition, 1 if alone else sharing.processes_of_replica(asked, cell.replicas))


def _join(cell: TrainingCell, shares: sharing.Shares, device: torch.device, patience: timedelta) -> Team:
    """The team that this process belongs to."""
    if not sharing.launched():
        return ALONE
    from reproduce import processes

    try:
        return processes.join(cell, shares, device, patience)
    except UnsupportedError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := processes.loss(error):
            if first_to_tell():
                click.echo(lost, err=True)
            sys.exit(LOST)
        raise


def _run(record: Record, context: Context, interrupt: Interrupt, *, retry_failed: bool) -> State:
    """Run or continue the cell; what a person can do something about ends the command with a message."""
    team, bar = context.team, context.observer
    try:
        if team.leads and retry_failed and record.state().status is Status.FAILED:
            with record.lock():
                record.retry()
        return execute(record, context)
    except Stopped as stop:
        if team.leads:
            bar.close()
            click.echo(f"{stop}; saved, the same command goes on from there", err=True)
        team.leave()
        sys.exit(interrupt.exit_code)
    except (RecordError, CheckpointError, DataError, StorageFullError, UnsupportedError) as error:
        raise Failure(f"{team.name}{error}") from error
    except (LockedError, LockLostError) as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := team.lost(error):
            if first_to_tell():
                click.echo(f"{team.name}{lost}", err=True)
            sys.exit(LOST)
        first_to_tell()  # the traceback is the message; the others, who will now lose this process, have nothing to add
        if team.name:
            error.add_note(f"on {team.name.removesuffix(': ')}")
        raise
    finally:
        bar.close()


def cell_by_hand(settings: dict[str, Any]) -> TrainingCell:
    """A cell of the scale `custom` from the options of `train`, with what they leave open by rule.

    Raises:
        CellError: a setting is wrong.

    """
    values = dict(settings)
    model = values["model"]
    is_chain, is_transformer = model.startswith("chain"), model in transformers.MODELS
    try:
        dataset = catalogue.by_name(values["dataset"])
    except ValueError as error:
        raise CellError(str(error)) from None
    patches = transformers.default_stem(model, values["image_size"] or dataset.image_size)
    defaults = {
        "stem": patches if is_transformer else "stride1" if is_chain else dataset.stem,
        "width": transformers.default_width(model) if is_transformer else DEFAULTS.width,
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
            samples = values["batch_size"] * max(values["replicas"], 1)  # a wrong number is the cell's to refuse
            rule = RULES.get(values["optimizer"], RULES[DEFAULTS.optimizer])  # likewise
            values["learning_rate"] = rule.rate(samples, values["accumulation"])
        except ValueError as error:
            raise CellError(str(error)) from None
    return TrainingCell(scale="custom", **values)
