"""Define `train`: train one cell, with an option for every setting.

The training (`reproduce.commands.process`) needs torch, which takes seconds to import. Help and refusals of settings do
not import it.
"""

import enum
import math
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from petra_core import delay, methods
from reproduce.cells import catalogue, networks, own, rates, timing, transformers
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
from reproduce.modelling import fewer_stages, work
from reproduce.modelling.network import balance
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
#: Settings of forward gradients and their defaults, which are the paper's algorithm.
FORWARD = {name: getattr(forward.ForwardGradient(), name).value for name in forward.AXES}
FORWARD["auxiliary"] = AUXILIARIES[0]
FORWARD_MODEL = next(iter(BLOCK_MODELS))
SAME_RATE = 1e-12  # relative difference up to which a written and a computed learning rate are equal
TRACED = 16  # micro-batches of a trace
CONSTANTS = [c for c in delay.CORRECTIONS.values() if c.meaning and c is not delay.Rate]


def _choices(of: type[enum.Enum]) -> str:
    return ", ".join(choice.value for choice in of)


@click.command(cls=GroupedCommand)
@NETWORK(
    "--model",
    show_default=f"{DEFAULTS.model}; forward-gradient: {FORWARD_MODEL}",
    help="revnet18, 34, 50, resnet18, 34, 50, invertible_revnet18, 34, 50, chain<n> (n reversible blocks), "
    f"{', '.join(BLOCK_MODELS)} (for forward-gradient), or a transformer: vit, revvit, revswin, revmvit or (for text) "
    "revroberta, with the suffix _micro, _base and more; or module:function, your function that returns the stages.",
)
@NETWORK(
    "--stem",
    show_default="depends on the data set; chains: stride1; transformers: patches for the image size",
    help="cifar, imagenet32, imagenet; for chains stride1, 2 or 4; for transformers patch<P>: P x P pixels, or bytes.",
)
@NETWORK(
    "--width",
    type=int,
    show_default=f"{DEFAULTS.width}; transformers: the published width",
    help="Channels of the first blocks, per stream (64 in the paper).",
)
@NETWORK(
    "--coupling",
    default=DEFAULTS.coupling,
    help="Coupling of a vit: bdia (bitwise invertible), bdia_float, or own (not invertible).",
)
@DATA("--dataset", default=DEFAULTS.dataset, help=f"{', '.join(catalogue.DATASETS)}; `data list` shows their state.")
@DATA(
    "--image-size",
    type=int,
    show_default="digits: 8; imagenet: 224; text: 64; else 32",
    help="Height and width in pixels; for text the bytes of a sequence.",
)
@DATA("--batch-size", default=DEFAULTS.batch_size, help="Samples per micro-batch.")
@DATA(
    "--augmentation",
    show_default="the paper's, none for digits",
    help="none, flip_crop (flip, crop after padding by 4), random_resized_crop (and flip; imagenet), or mask (text).",
)
@DATA("--loader", show_default="ffcv if installed", help="Loader of the batches: ffcv, memory, torchvision.")
@METHOD(
    "--method",
    default=DEFAULTS.method,
    help=f"{', '.join(method.name for method in methods.ALL)}, or forward-gradient.",
)
@METHOD(
    *("accumulation", "-k", "--k", "--accumulation"),
    type=int,
    show_default=f"{DEFAULTS.accumulation}; forward-gradient: 1",
    help="Micro-batches per update, 1 to 32.",
)
@METHOD(
    "--timing",
    show_default=f"{DEFAULTS.timing}; published systems ({', '.join(methods.SYSTEMS)}): 1f1b",
    help="For pipelined methods: lockstep (the paper's), 1f1b (asynchronous 1F1B: half the staleness), or 1f1b+S with "
    "slack for latency.",
)
@METHOD(
    "--stages",
    metavar="SIZES",
    show_default="every block",
    help="Blocks of each stage, such as 3,2,2,3: fewer stages, less staleness. A single number, such "
    "as 4, sets the number of stages, cut by predicted costs. The number of --processes does not change the result.",
)
@METHOD(
    "--forward-weights",
    default=DEFAULTS.forward_weights,
    help=f"{', '.join(FORWARD_WEIGHTS)}: extrapolated along the momentum to those at the backward.",
)
@METHOD("--correction", default=DEFAULTS.correction, help=f"Delay compensation: none, {', '.join(delay.CORRECTIONS)}.")
@METHOD(
    "--correction-value",
    type=float,
    show_default="rate: a third of the epochs, " + ", ".join(f"{c.name}: {c.default:g}" for c in CONSTANTS),
    help="Parameter of the correction (for rate: number of epochs until it is switched off).",
)
@METHOD(
    "--replicas",
    default=DEFAULTS.replicas,
    help="Data-parallel replicas R, on separate micro-batches with averaged gradients: R times the batch.",
)
@GUESSES("--target", show_default=FORWARD["target"], help=f"{_choices(forward.Target)}: gradient to follow.")
@GUESSES("--guess", show_default=FORWARD["guess"], help=f"{_choices(forward.Guess)}: direction of the step.")
@GUESSES("--space", show_default=FORWARD["space"], help=f"{_choices(forward.Space)}: space of the product.")
@GUESSES("--scaling", show_default=FORWARD["scaling"], help=f"{_choices(forward.Scaling)}: factor of the guess.")
@GUESSES("--derivative", show_default=FORWARD["derivative"], help=f"{_choices(forward.Derivative)} (forward mode).")
@GUESSES(
    "--auxiliary", show_default=FORWARD["auxiliary"], help=f"{', '.join(AUXILIARIES)}: networks with local losses."
)
@RECIPE("--epochs", default=DEFAULTS.epochs, help="Passes over the training set.")
@RECIPE(
    "--learning-rate",
    type=float,
    show_default="0.1·s; adamw: 2.5e-4·√s",
    help="Learning rate after warm-up; s = batch size · k · replicas / 256.",
)
@RECIPE("--warmup-epochs", default=DEFAULTS.warmup_epochs, help="Linear warm-up from 0; may be a fraction.")
@RECIPE(
    "--drops",
    default="",
    show_default="none",
    metavar="EPOCHS",
    help="Epochs after which the learning rate drops, such as 150,225.",
)
@RECIPE("--drop-factor", default=DEFAULTS.drop_factor, help="Factor of the learning rate at every drop.")
@RECIPE("--optimizer", default=DEFAULTS.optimizer, help=f"{', '.join(OPTIMIZERS)}; adamw is usual for transformers.")
@RECIPE("--momentum", default=DEFAULTS.momentum, help="Nesterov momentum (0: none), or first beta.")
@RECIPE(
    "--weight-decay",
    type=float,
    show_default="the paper's: 1e-4 for both ImageNets, else 5e-4; 0.01 for text",
    help="Weight decay of weights; biases and BatchNorm do not decay.",
)
@RECIPE("--precision", default=DEFAULTS.precision, help="float32, tf32 (CUDA), bf16 (autocast; streams stay float32).")
@RECIPE("--seed", default=DEFAULTS.seed, help="Seed of initialisation, order, augmentation and dropout.")
@RUN("--output", type=FOLDER, show_default="runs/<name of the cell>", help="Folder for record and model.pt.")
@RUN("--device", default="cpu", help="Device to train on, such as cuda:0.")
@RUN(
    "--threads",
    type=click.IntRange(1),
    default=THREADS,
    help="Threads of each process. More can be faster for wide networks on idle cores. Changing it changes results in "
    "the last bits.",
)
@RUN("--retry-failed", is_flag=True, show_default=False, help="Resume a failed run from its last good checkpoint.")
@RUN("--processes", type=click.IntRange(1), default=1, help="Processes per replica; the result does not change.")
@RUN(
    "--partition",
    default="even",
    metavar="SIZES",
    help="Stages of each process, such as 2,3,5; even: equal numbers; balanced: equal times, measured first.",
)
@RUN(
    "--patience",
    type=Minutes(min_open=True),
    default=5.0,
    metavar="MINUTES",
    help="Timeout in minutes for messages from other processes.",
)
@RUN("--restarts", type=click.IntRange(0), default=3, help="Maximum number of restarts after a process was killed.")
@how_options(RUN)
@RUN("--tensorboard", type=FOLDER, help="Folder for TensorBoard event files.")
@RUN(
    "--trace",
    type=FILE,
    help="File for a Chrome trace of the first micro-batches after the pipeline has filled.",
)
@RUN("--trace-micro-batches", type=click.IntRange(1), show_default=str(TRACED), help="Micro-batches in the trace.")
@click.help_option("-h", "--help")
def train(how: How, device: str, threads: int, processes: int, partition: str, restarts: int, **options: Any) -> None:
    """Train one network, with an option for every setting.

    Write a record and model.pt (the plain sequential model's state dict, for torch.load with weights_only=True) to the
    output folder. If the training is stopped, in any way, the same command resumes it and gives the same weights.
    """
    if options["trace"] is None and options["trace_micro_batches"] is not None:
        raise click.UsageError("--trace-micro-batches: --trace is missing, which names the file")
    options["trace_micro_batches"] = options["trace_micro_batches"] or TRACED
    settings = {field.name: options.pop(field.name) for field in fields(ForwardGradientCell) if field.name in options}
    cell = cell_by_hand(settings)
    if own.is_own(cell.model):
        own.check_samples(cell.model, catalogue.by_name(cell.dataset), cell.image_size)
    devices.check_there(device)
    devices.check_graphs(how.cuda_graphs, [device])
    if processes > 1 and isinstance(cell, ForwardGradientCell):
        raise click.UsageError(f"--processes {processes}: forward gradients are trained in one process")
    if processes * cell.replicas > 1 and not launched.in_a_team():
        arguments = sys.argv[1:]
        if partition == "balanced":
            partitioning.shares(cell, "even", processes)  # check the number of processes before timing the stages
            cut = balance(cell, processes, devices.take(device), threads=threads)
            partition = ",".join(map(str, cut))
            click.echo(f"--partition balanced is {partition}, from the measured costs of the stages", err=True)
            arguments += ["--partition", partition]  # the last one wins: all processes agree, also after a restart
        # Report an error once, not in every process.
        partitioning.shares(cell, partition, processes)
        if said := fewer_stages.describe(cell, processes):
            click.echo(said, err=True)
        check_files(options["output"] or Path("runs") / cell.name, options["trace"], options["tensorboard"])
        sys.exit(launch(processes * cell.replicas, arguments, restarts=restarts))
    from reproduce.commands.process import train_here  # torch

    how = shared_by(how, launched.local_team_size())
    train_here(cell, how, device=device, threads=threads, processes=processes, partition=partition, **options)


def cell_by_hand(settings: dict[str, Any]) -> TrainedCell:
    """Make a cell of the scale `custom` from the options of `train`, and fill in what they leave open.

    Raises:
        CellError: A setting is wrong.

    """
    open_ones = {**dict.fromkeys(BY_RULE), "drops": "", "stages": "", "timing": None}
    values = {**asdict(DEFAULTS), **open_ones, **settings, "scale": "custom"}
    axes = {name: values.pop(name, None) for name in FORWARD}
    guesses = is_forward_gradient(values["method"])
    if given := [name for name, value in axes.items() if value is not None and not guesses]:
        raise CellError(f"--{given[0]} requires --method forward-gradient, got --method {values['method']}")
    if values["model"] is None:
        values["model"] = FORWARD_MODEL if guesses else DEFAULTS.model
    model, dataset = values["model"], catalogue.by_name(values["dataset"])
    constants = {c.name: c.default for c in CONSTANTS} | {delay.Rate.name: values["epochs"] / 3}
    defaults = {
        "accumulation": 1 if guesses else DEFAULTS.accumulation,
        "stem": networks.default_stem(model, dataset, values["image_size"] or dataset.image_size),
        "width": _width(model),
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
        raise CellError(f"--drops: expected epochs separated by commas, got {values['drops']!r}") from None
    chosen = values["timing"] and timing.canonical(values["timing"])
    values["timing"] = timing.of_system(values["method"], chosen)
    stages, values["stages"] = values["stages"] or "", ()
    if not values["drops"]:
        values["drop_factor"] = DEFAULTS.drop_factor  # has no effect: equal trainings must have equal identities
    given = values["learning_rate"]
    try:
        samples = values["batch_size"] * max(values["replicas"], 1)  # the cell refuses a wrong number
        optimizer = values["optimizer"] if values["optimizer"] in OPTIMIZERS else DEFAULTS.optimizer  # also this
        usual = rates.rate(optimizer, samples, values["accumulation"])
        if given is None or math.isclose(given, usual, rel_tol=SAME_RATE):
            values["learning_rate"] = usual
    except ValueError as error:
        if given is None:
            raise CellError(str(error)) from None
    if not guesses:
        return TrainingCell(**values | {"stages": _sizes(values, stages)})
    if stages:
        raise CellError(f"--stages: forward gradients have no pipeline stages; got {stages!r}")
    axes = {name: FORWARD[name] if value is None else value for name, value in axes.items()}
    return ForwardGradientCell(**values, **axes)


def _width(model: str) -> int:
    """Return the usual width of a network."""
    if own.is_own(model):
        return own.WIDTH
    return transformers.MODELS[model].width if model in transformers.MODELS else DEFAULTS.width


def _sizes(values: dict[str, Any], stages: str) -> tuple[int, ...]:
    """Return the number of blocks of each stage from the value of `--stages`.

    A single number is a number of stages. It is cut by predicted costs, and the cut is printed.

    Args:
        values: Other settings of the cell.
        stages: Value of the option.

    Returns:
        The number of blocks of each stage.

    Raises:
        CellError: The value contains no numbers, or more stages than there are blocks.

    """
    try:
        sizes = tuple(int(size) for size in stages.split(",") if size.strip())
    except ValueError:
        raise CellError(
            f"--stages: expected numbers of blocks separated by commas, such as 3,2,2,3, or one number of stages; got "
            f"{stages!r}"
        ) from None
    if len(sizes) != 1:
        return sizes
    plain = {name: getattr(DEFAULTS, name) for name in ("forward_weights", "correction", "correction_value", "timing")}
    network = TrainingCell(**values | plain | {"method": methods.BACKPROPAGATION.name, "stages": ()})
    sizes, count = work.choose_sizes(network, sizes[0]), sizes[0]
    if not launched.in_a_team():
        cut = "every block" if set(sizes) == {1} else partitioning.written(sizes)
        click.echo(f"--stages {count} is {cut}: blocks of each stage, by predicted costs", err=True)
    return sizes
