"""Define `train`: train one cell, with an option for every setting.

The training (`reproduce.commands.process`) needs torch, which takes seconds to import. Help and refusals of settings do
not import it.
"""

import math
import sys
from dataclasses import asdict
from typing import Any

import click

from petra_core import delay, methods
from reproduce.cells import catalogue, networks, own, rates, timing, transformers
from reproduce.cells.kinds import (
    FORWARD_GRADIENT,
    FORWARD_MODEL,
    OPTIMIZERS,
    USUAL_CONSTANTS,
    CellError,
    ForwardGradientCell,
    TrainedCell,
    TrainingCell,
)
from reproduce.cells.setting import GUESSES, settings_of
from reproduce.commands.common import CORES, check_files
from reproduce.commands.options import Command, options_of
from reproduce.commands.train_options import TrainOptions
from reproduce.distributed import launch_env, partitioning
from reproduce.distributed.launch import launch
from reproduce.grids import recipes
from reproduce.modelling import work
from reproduce.modelling.network import balance
from reproduce.running import devices

DEFAULTS = recipes.cell("smoke", method=methods.PETRA, accumulation=4)
SETTINGS = settings_of(ForwardGradientCell)  # includes those of a `TrainingCell`
#: Settings of forward gradients and their defaults, which are the paper's algorithm.
FORWARD = {name: described.rule for name, described in SETTINGS.items() if described.group == GUESSES}
#: Constant defaults of the other settings.
CONSTANT = {name: value for name, value in asdict(DEFAULTS).items() if name in SETTINGS} | {"method": "petra"}
SAME_RATE = 1e-12  # relative difference up to which a written and a computed learning rate are equal


@click.command(cls=Command)
@options_of(ForwardGradientCell, "settings", defaults=CONSTANT)
@options_of(TrainOptions, "options")
@click.help_option("-h", "--help")
@click.pass_context
def train(context: click.Context, settings: dict[str, Any], options: TrainOptions) -> None:
    """Train one network, with an option for every setting.

    Write a record and model.pt (the plain sequential model's state dict, for torch.load with weights_only=True) to the
    output folder. If the training is stopped, in any way, the same command resumes it and gives the same weights.
    """
    if options.trace is None and context.params["trace_micro_batches"] is not None:
        raise click.UsageError("--trace-micro-batches: --trace is missing, which names the file")
    cell = cell_by_hand(settings)
    if own.is_own(cell.model):
        own.check_samples(cell.model, catalogue.by_name(cell.dataset), cell.image_size)
    devices.check_there(options.device)
    devices.check_cuda(options.cuda_graphs, cell.precision, [options.device])
    processes, partition = options.processes, options.partition
    if processes > 1 and isinstance(cell, ForwardGradientCell):
        raise click.UsageError(f"--processes {processes}: forward gradients are trained in one process; leave it out")
    if processes * cell.replicas > 1 and not launch_env.is_distributed():
        arguments = sys.argv[1:]
        if partition == "balanced":
            partitioning.parse_partition(cell, "even", processes)  # check the number before timing the stages
            cut = balance(cell, processes, devices.take(options.device), threads=options.threads)
            partition = ",".join(map(str, cut))
            click.echo(f"--partition balanced is {partition}, from the measured costs of the stages", err=True)
            arguments += ["--partition", partition]  # the last one wins: all processes agree, also after a restart
        # Report an error once, not in every process.
        partitioning.parse_partition(cell, partition, processes)
        check_files(*options.files_of(cell))
        sys.exit(launch(processes * cell.replicas, arguments, restarts=options.max_restarts))
    from reproduce.commands.process import train_here  # torch

    train_here(cell, options.share_cores(CORES, launch_env.local_world_size()))


def cell_by_hand(settings: dict[str, Any]) -> TrainedCell:
    """Make a cell of the scale `custom` from the options of `train`, and fill in what they leave open.

    Raises:
        CellError: A setting is wrong.

    """
    by_rule = {name: None for name, described in SETTINGS.items() if described.rule}
    values: dict[str, Any] = {**CONSTANT, **by_rule, **settings, "scale": "custom"}
    axes = {name: values.pop(name) for name in FORWARD}
    guesses = methods.normalize(values["method"]) == FORWARD_GRADIENT
    if given := [name for name, value in axes.items() if value is not None and not guesses]:
        raise CellError(f"--{given[0]} requires --method forward-gradient, got --method {values['method']}")
    if values["model"] is None:
        values["model"] = FORWARD_MODEL if guesses else DEFAULTS.model
    model, dataset = values["model"], catalogue.by_name(values["dataset"])
    constants = USUAL_CONSTANTS | {delay.Rate.name: values["epochs"] / 3}
    defaults = {
        "accumulation": 1 if guesses else DEFAULTS.accumulation,
        "stem": networks.default_stem(model, dataset, values["image_size"] or dataset.image_size),
        "width": _width(model),
        "image_size": dataset.image_size,
        "augmentation": dataset.augmentations[0],
        "loader": dataset.default_loader,
        "weight_decay": dataset.weight_decay,
        "correction_value": constants.get(values["correction"], 0.0),
        "drops": (),
    }
    values |= {name: value for name, value in defaults.items() if values[name] is None}
    chosen = values["timing"] and timing.canonical(values["timing"])
    values["timing"] = timing.of_system(values["method"], chosen)
    stages, values["stages"] = values["stages"] or (), ()
    if not values["drops"]:
        values["drop_factor"] = DEFAULTS.drop_factor  # has no effect: equal trainings must have equal identities
    given_rate = values["learning_rate"]
    try:
        samples = values["batch_size"] * max(values["replicas"], 1)  # the cell refuses a wrong number
        optimizer = values["optimizer"] if values["optimizer"] in OPTIMIZERS else DEFAULTS.optimizer  # also this
        usual = rates.learning_rate(samples, values["accumulation"], optimizer=optimizer)
        if given_rate is None or math.isclose(given_rate, usual, rel_tol=SAME_RATE):
            values["learning_rate"] = usual
    except ValueError as error:
        if given_rate is None:
            raise CellError(str(error)) from None
    if not guesses:
        return TrainingCell(**values | {"stages": _sizes(values, stages)})
    if stages:
        raise CellError(f"--stages: forward gradients have no pipeline stages; got {','.join(map(str, stages))}")
    values |= {name: value or FORWARD[name] for name, value in axes.items()}
    return ForwardGradientCell(**values)


def _width(model: str) -> int:
    """Return the usual width of a network."""
    if own.is_own(model):
        return own.WIDTH
    return transformers.MODELS[model].width if model in transformers.MODELS else DEFAULTS.width


def _sizes(values: dict[str, Any], stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of blocks of each stage from the value of `--stages`.

    A single number is a number of stages. Their sizes follow from predicted costs and are printed.

    Args:
        values: Other settings of the cell.
        stages: Value of the option.

    Raises:
        CellError: There are more stages than blocks.

    """
    if len(stages) != 1:
        return stages
    plain = {name: getattr(DEFAULTS, name) for name in ("forward_weights", "correction", "correction_value", "timing")}
    network = TrainingCell(**values | plain | {"method": methods.BACKPROPAGATION.name, "stages": ()})
    sizes = work.choose_sizes(network, stages[0])
    if not launch_env.is_distributed():
        cut = "every block" if set(sizes) == {1} else partitioning.format_partition(sizes)
        click.echo(f"--stages {stages[0]} is {cut}: blocks of each stage, by predicted costs", err=True)
    return sizes
