"""`train`: one cell by hand, every setting an option.

What trains (`reproduce.commands.process`) needs torch, which takes seconds to import: to explain, or to refuse a
setting, does not wait for it.
"""

import enum
import math
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from petra_core import delay, methods
from reproduce.cells import catalogue, networks, rates, timing, transformers
from reproduce.cells.kinds import (
    AUXILIARIES,
    BLOCK_MODELS,
    FORWARD_WEIGHTS,
    OPTIMIZERS,
    CellError,
    ForwardGradientCell,
    TrainedCell,
    TrainingCell,
    is_forward_gradient,
)
from reproduce.commands.common import FILE, FOLDER, THREADS, check_files, how_options, shared_by
from reproduce.commands.options import GroupedCommand, Minutes, grouped
from reproduce.forward_gradients import settings as forward
from reproduce.grids import recipes
from reproduce.measures.how import How
from reproduce.modelling import balance, fewer_stages, work
from reproduce.running import devices
from reproduce.teams import launched, partitioning
from reproduce.teams.launch import launch

NETWORK, DATA, METHOD, GUESSES, RECIPE, RUN = (
    grouped(name) for name in ("Network", "Data", "Method", "Forward gradients", "Recipe", "Where and how")
)
DEFAULTS = recipes.cell("smoke", method=methods.PETRA, accumulation=4)
BY_RULE = (
    *("model", "accumulation", "stem", "width", "image_size", "augmentation", "loader", "learning_rate"),
    *("weight_decay", "correction_value"),
)
#: Settings of forward gradients with their defaults: the paper's algorithm.
FORWARD = {name: getattr(forward.ForwardGradient(), name).value for name in forward.AXES}
FORWARD["auxiliary"] = AUXILIARIES[0]
FORWARD_MODEL = next(iter(BLOCK_MODELS))
SAME_RATE = 1e-12  # relative difference of two learning rates that are one, written and computed
TRACED = 16  # micro-batches of a trace
CONSTANTS = [c for c in delay.CORRECTIONS.values() if c.meaning and c is not delay.Rate]


def _choices(of: type[enum.Enum]) -> str:
    return ", ".join(choice.value for choice in of)


@click.command(cls=GroupedCommand)
@NETWORK(
    "--model",
    show_default=f"{DEFAULTS.model}, of forward-gradient {FORWARD_MODEL}",
    help="revnet18, 34, 50, resnet18, 34, 50, invertible_revnet18, 34, 50, chain<n> (n reversible blocks), "
    f"{', '.join(BLOCK_MODELS)} (for forward-gradient), or a transformer: vit, revvit, revswin, revmvit or (for text) "
    "revroberta with _micro, _base and more.",
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
@NETWORK(
    "--coupling",
    default=DEFAULTS.coupling,
    help="Of a vit, what makes its blocks invertible: bdia (to the bit), bdia_float, or own (nothing).",
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
@METHOD(
    "--method",
    default=DEFAULTS.method,
    help=f"{', '.join(method.name for method in methods.ALL)}, or forward-gradient.",
)
@METHOD(
    *("accumulation", "-k", "--k", "--accumulation"),
    type=int,
    show_default=f"{DEFAULTS.accumulation}, of forward-gradient 1",
    help="Micro-batches of an update, 1 to 32.",
)
@METHOD(
    "--timing",
    show_default=f"{DEFAULTS.timing}; of a published system ({', '.join(methods.SYSTEMS)}) 1f1b",
    help="Of a pipelined method: lockstep (the paper's), 1f1b (asynchronous 1F1B: half its staleness), or 1f1b+S with "
    "slack for latency.",
)
@METHOD(
    "--stages",
    metavar="SIZES",
    show_default="every block",
    help="Blocks of each stage, one device each, such as 3,2,2,3: fewer stages, less staleness. A number alone, such "
    "as 4, is a number of stages, cut by predicted costs. Any number of processes gives the same result (--processes).",
)
@METHOD(
    "--forward-weights",
    default=DEFAULTS.forward_weights,
    help=f"{', '.join(FORWARD_WEIGHTS)}: those that the stage will have at the backward, along the momentum.",
)
@METHOD("--correction", default=DEFAULTS.correction, help=f"For delay: none, {', '.join(delay.CORRECTIONS)}.")
@METHOD(
    "--correction-value",
    type=float,
    show_default="rate: a third of the epochs, " + ", ".join(f"{c.name}: {c.default:g}" for c in CONSTANTS),
    help="Constant of the correction: of rate the epochs until it is released.",
)
@METHOD(
    "--replicas",
    default=DEFAULTS.replicas,
    help="Networks side by side, each on micro-batches of its own, with one mean gradient: R times the batch.",
)
@GUESSES("--target", show_default=FORWARD["target"], help=f"{_choices(forward.Target)}: the gradient to be followed.")
@GUESSES("--guess", show_default=FORWARD["guess"], help=f"{_choices(forward.Guess)}: the direction that is taken.")
@GUESSES("--space", show_default=FORWARD["space"], help=f"{_choices(forward.Space)}, in which they are multiplied.")
@GUESSES("--scaling", show_default=FORWARD["scaling"], help=f"{_choices(forward.Scaling)}: what stands before a guess.")
@GUESSES("--derivative", show_default=FORWARD["derivative"], help=f"{_choices(forward.Derivative)} (forward mode).")
@GUESSES(
    "--auxiliary", show_default=FORWARD["auxiliary"], help=f"{', '.join(AUXILIARIES)}: networks with local losses."
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
@RECIPE("--optimizer", default=DEFAULTS.optimizer, help=f"{', '.join(OPTIMIZERS)}; adamw is usual for transformers.")
@RECIPE("--momentum", default=DEFAULTS.momentum, help="Nesterov momentum, 0 for none; else the first beta.")
@RECIPE(
    "--weight-decay",
    type=float,
    show_default="the paper's: 1e-4 for both ImageNets, else 5e-4; 0.01 for text",
    help="Of weights, not of biases and BatchNorm.",
)
@RECIPE("--precision", default=DEFAULTS.precision, help="float32, tf32 (CUDA), bf16 (autocast; streams stay float32).")
@RECIPE("--seed", default=DEFAULTS.seed, help="Of initialisation, order, augmentation and dropout.")
@RUN("--output", type=FOLDER, show_default="runs/<name of the cell>", help="For record and model.pt.")
@RUN("--device", default="cpu", help="Device to train on, such as cuda:0.")
@RUN(
    "--threads",
    type=click.IntRange(1),
    default=THREADS,
    help="Of each process, however many there are; more can be faster, for wide networks on idle cores, and give "
    "other bits.",
)
@RUN("--retry-failed", is_flag=True, show_default=False, help="Go on from the last good checkpoint of a failed run.")
@RUN("--processes", type=click.IntRange(1), default=1, help="Share a replica's stages; the result is the same.")
@RUN(
    "--partition",
    default="even",
    metavar="SIZES",
    help="Stages of each process, such as 2,3,5; even: in number; balanced: in time, by timing them first.",
)
@RUN(
    "--patience",
    type=Minutes(min_open=True),
    default=5.0,
    metavar="MINUTES",
    help="A process that is silent for so long is lost.",
)
@RUN("--restarts", type=click.IntRange(0), default=3, help="Starts again after one of several processes was killed.")
@how_options(RUN)
@RUN("--tensorboard", type=FOLDER, help="Folder for TensorBoard event files.")
@RUN(
    "--trace",
    type=FILE,
    help="File for a Chrome trace of the first micro-batches after the pipeline has filled.",
)
@RUN("--trace-micro-batches", type=click.IntRange(1), show_default=str(TRACED), help="How many of them.")
@click.help_option("-h", "--help")
def train(how: How, device: str, threads: int, processes: int, partition: str, restarts: int, **options: Any) -> None:
    """Train one network with every setting an option.

    Leaves a record and model.pt (the plain sequential model's state dict, for torch.load with weights_only=True) in
    the output folder. Stopped in any way, the same command goes on, and ends with the same weights.
    """
    if options["trace"] is None and options["trace_micro_batches"] is not None:
        raise click.UsageError("--trace-micro-batches: --trace is missing, the file for them")
    options["trace_micro_batches"] = options["trace_micro_batches"] or TRACED
    settings = {field.name: options.pop(field.name) for field in fields(ForwardGradientCell) if field.name in options}
    cell = cell_by_hand(settings)
    devices.check_there(device)
    devices.check_graphs(how.cuda_graphs, [device])
    if processes > 1 and isinstance(cell, ForwardGradientCell):
        raise click.UsageError(f"--processes {processes}: forward gradients are trained by one process")
    if processes * cell.replicas > 1 and not launched.in_a_team():
        arguments = sys.argv[1:]
        if partition == "balanced":
            partitioning.shares(cell, "even", processes)  # so many can share it, before its stages are timed
            cut = balance.balanced(cell, processes, devices.take(device), threads=threads)
            partition = ",".join(map(str, cut))
            click.echo(f"--partition balanced is {partition}, from what the stages cost here and now", err=True)
            arguments += ["--partition", partition]  # the last one counts: all processes agree, after a new start too
        # A mistake is told once, not by every process.
        partitioning.shares(cell, partition, processes)
        if said := fewer_stages.sentence(cell, processes):
            click.echo(said, err=True)
        check_files(options["output"] or Path("runs") / cell.name, options["trace"], options["tensorboard"])
        sys.exit(launch(processes * cell.replicas, arguments, restarts=restarts))
    from reproduce.commands.process import train_here  # torch

    how = shared_by(how, launched.local_team_size())
    train_here(cell, how, device=device, threads=threads, processes=processes, partition=partition, **options)


def cell_by_hand(settings: dict[str, Any]) -> TrainedCell:
    """A cell of the scale `custom` from options of `train`, with what they leave open by rule or by default.

    Raises: CellError: a setting is wrong.
    """
    open_ones = {**dict.fromkeys(BY_RULE), "drops": "", "stages": "", "timing": None}
    values = {**asdict(DEFAULTS), **open_ones, **settings, "scale": "custom"}
    axes = {name: values.pop(name, None) for name in FORWARD}
    guesses = is_forward_gradient(values["method"])
    if given := [name for name, value in axes.items() if value is not None and not guesses]:
        raise CellError(f"--{given[0]} is of --method forward-gradient, got --method {values['method']}")
    if values["model"] is None:
        values["model"] = FORWARD_MODEL if guesses else DEFAULTS.model
    model, dataset = values["model"], catalogue.by_name(values["dataset"])
    constants = {c.name: c.default for c in CONSTANTS} | {delay.Rate.name: values["epochs"] / 3}
    defaults = {
        "accumulation": 1 if guesses else DEFAULTS.accumulation,
        "stem": networks.default_stem(model, dataset, values["image_size"] or dataset.image_size),
        "width": transformers.MODELS[model].width if model in transformers.MODELS else DEFAULTS.width,
        "image_size": dataset.image_size,
        "augmentation": dataset.augmentations[0],
        "loader": dataset.default_loader,
        "weight_decay": dataset.weight_decay,
        "correction_value": constants.get(values["correction"], 0.0),
    }
    values |= {name: value for name, value in defaults.items() if values[name] is None}
    try:
        values["drops"] = tuple(int(drop) for drop in values["drops"].split(",") if drop.strip())
    except ValueError:
        raise CellError(f"drops are epochs separated by commas, got {values['drops']!r}") from None
    values["timing"] = timing.of_system(values["method"], values["timing"])
    stages, values["stages"] = values["stages"] or "", ()
    if not values["drops"]:
        values["drop_factor"] = DEFAULTS.drop_factor  # without effect: one training has one identity
    given = values["learning_rate"]
    try:
        samples = values["batch_size"] * max(values["replicas"], 1)  # a wrong number is the cell's to refuse
        optimizer = values["optimizer"] if values["optimizer"] in OPTIMIZERS else DEFAULTS.optimizer  # so is that
        usual = rates.rate(optimizer, samples, values["accumulation"])
        if given is None or math.isclose(given, usual, rel_tol=SAME_RATE):
            values["learning_rate"] = usual
    except ValueError as error:
        if given is None:
            raise CellError(str(error)) from None
    if not guesses:
        return TrainingCell(**values | {"stages": _sizes(values, stages)})
    if stages:
        raise CellError(f"stages are of the pipeline, forward gradients have none; got {stages!r}")
    axes = {name: FORWARD[name] if value is None else value for name, value in axes.items()}
    return ForwardGradientCell(**values, **axes)


def _sizes(values: dict[str, Any], stages: str) -> tuple[int, ...]:
    """Return the numbers of blocks of each stage, from what `--stages` says.

    A number alone is a number of stages: it is cut by predicted costs, and the cut is printed.

    Args:
        values: the other settings of a cell.
        stages: what the option says.

    Raises:
        CellError: it says no numbers, or more stages than there are blocks.

    """
    try:
        sizes = tuple(int(size) for size in stages.split(",") if size.strip())
    except ValueError:
        raise CellError(
            f"stages are numbers of blocks separated by commas, such as 3,2,2,3, or one number of stages; got "
            f"{stages!r}"
        ) from None
    if len(sizes) != 1:
        return sizes
    plain = {name: getattr(DEFAULTS, name) for name in ("forward_weights", "correction", "correction_value", "timing")}
    network = TrainingCell(**values | plain | {"method": methods.BACKPROPAGATION.name, "stages": ()})
    sizes, count = work.sizes(network, sizes[0]), sizes[0]
    if not launched.in_a_team():
        cut = "every block" if set(sizes) == {1} else partitioning.written(sizes)
        click.echo(f"--stages {count} is {cut}: blocks of each stage, by predicted costs", err=True)
    return sizes
