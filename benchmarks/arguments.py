"""Arguments of the benchmarks' command lines: methods, networks and numbers, each an argparse type.

Something unknown is refused before anything is measured, with what was expected.
"""

import argparse
import contextlib
import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from petra_core import Stage, methods, models
from petra_core.methods import Method
from reproduce.running import devices
from reproduce.running.execution import deterministic

__all__ = [
    "CLASSES",
    "NETWORKS",
    "add_device",
    "add_methods",
    "add_networks",
    "add_precision",
    "add_quick",
    "as_trained",
    "count",
    "network",
    "network_name",
    "paper_method",
    "parse_quick",
    "path",
    "positive",
    "whole_number",
]

CLASSES = 10
#: Settings of `--quick`.
QUICK = {"networks": ["chain3"], "width": 2, "batch": 2, "size": 8, "turns": 2, "rounds": 2, "seconds": 0.01}
DEPTHS = (18, 34, 50)
NETWORKS = "revnet18/34/50, resnet18/34/50 or chainN, such as chain12"


def count(given: str) -> int:
    """Parse a whole number from 1 on."""
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given}: expected a whole number from 1 on")
    return int(given)


def whole_number(given: str) -> int:
    """Parse a whole number from 0 on."""
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(f"{given}: expected a whole number from 0 on")
    return int(given)


def positive(given: str) -> float:
    """Parse a finite number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(given)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{given}: expected a number above 0")


def path(given: str) -> Path:
    """Parse a path; `~` is expanded here, since shells leave it in `--option=~/folder`."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{given}: it begins with the home folder of an unknown user") from None


def paper_method(given: str) -> Method:
    """Parse the name of a method of the paper, however it is spelled; see `petra_core.methods.by_name`.

    PaReprop computes in two threads, of which the profiler follows one, and has a benchmark of its own; PipeDream-2BW
    needs a k that depends on the stages.
    """
    try:
        named = methods.by_name(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if named not in methods.PAPER:
        expected = ", ".join(map(str, methods.PAPER))
        raise argparse.ArgumentTypeError(f"{named} is not measured here: expected one of {expected}")
    return named


def network_name(given: str) -> str:
    """Parse the name of a network that `network` makes."""
    try:
        _family_and_depth(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


def device_name(given: str) -> str:
    """Parse the name of a device that is there, such as cpu or cuda:1."""
    try:
        devices.check_there(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option for the device; `reproduce.running.devices.take` makes it the current one."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device_name, default=default, help="default: cuda if there is one")


def add_precision(parser: argparse.ArgumentParser, *others: str) -> None:
    """Add the option for the precision, of cells that are trained without autocast, or in one of the `others`."""
    choices = ("float32", "tf32", *others)
    parser.add_argument("--precision", choices=choices, default="float32", help="as of cells; tf32 on CUDA devices")


def as_trained(
    parser: argparse.ArgumentParser, options: argparse.Namespace, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """Context in which kernels are those with which a cell of this precision is trained, deterministic ones.

    PyTorch's defaults are another mode, in which no cell is trained: convolutions in TF32, and what is fastest.
    The command ends where the device has no such precision.
    """
    if options.precision == "tf32" and device.type != "cuda":
        parser.error(f"--precision tf32 is of CUDA devices, and --device is {device}")
    return deterministic(device, tf32=options.precision == "tf32")


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Add the option for the methods that are measured."""
    parser.add_argument(
        "--methods",
        type=paper_method,
        nargs="+",
        default=list(methods.PAPER),
        help="to measure (default: the paper's six)",
    )


def add_networks(parser: argparse.ArgumentParser) -> None:
    """Add the options for the networks that several processes train, and their micro-batches."""
    parser.add_argument("--networks", type=network_name, nargs="+", default=["chain10", "revnet18"], help=NETWORKS)
    parser.add_argument("--width", type=count, default=32, help="channels of the first stage (default 32)")
    parser.add_argument("--batch", type=count, default=16, help="images in a micro-batch (default 16)")
    parser.add_argument("--size", type=count, default=32, help="pixels of an image's side (default 32)")


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Add the option that makes everything tiny, which `parse_quick` applies."""
    parser.add_argument("--quick", action="store_true", help="tiny, whatever else is given: does it run?")


def parse_quick(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; `--quick` replaces what was given for those of the tiny settings that the parser has."""
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update({name: value for name, value in QUICK.items() if name in vars(options)})
    return options


def network(name: str, width: int) -> list[Stage]:
    """A network by name, for CIFAR's ten classes; `width` channels in its first blocks.

    Raises:
        ValueError: there is no such network.

    """
    family, depth = _family_and_depth(name)
    if family == "chain":
        return models.chain(depth, num_classes=CLASSES, channels=width)
    return {"revnet": models.revnet, "resnet": models.resnet}[family](depth, num_classes=CLASSES, width=width)


def _family_and_depth(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(revnet|resnet|chain)([1-9]\d*)", name)
    if match is None or (match[1] != "chain" and int(match[2]) not in DEPTHS):
        raise ValueError(f"there is no network {name!r}: expected {NETWORKS}")
    return match[1], int(match[2])
