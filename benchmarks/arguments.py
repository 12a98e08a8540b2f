"""Define argparse types and options of the benchmarks: methods, networks and numbers.

Unknown values are refused before anything is measured, with the expected values.
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
    """Parse a whole number of at least 1."""
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"got {given}, expected a whole number of at least 1")
    return int(given)


def whole_number(given: str) -> int:
    """Parse a whole number of at least 0."""
    if not given.isdecimal():
        raise argparse.ArgumentTypeError(f"got {given}, expected a whole number of at least 0")
    return int(given)


def positive(given: str) -> float:
    """Parse a finite positive number."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(given)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"got {given}, expected a number above 0")


def path(given: str) -> Path:
    """Parse a path; `~` is expanded here, since shells leave it in `--option=~/folder`."""
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{given}: it begins with the home folder of an unknown user") from None


def paper_method(given: str) -> Method:
    """Parse the name of a method of the paper, in any spelling that `petra_core.methods.by_name` accepts.

    PaReprop computes in two threads, of which the profiler follows one, and has a separate benchmark. PipeDream-2BW
    needs a k that depends on the number of stages.
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
    """Parse the name of a network that `network` can build."""
    try:
        _family_and_depth(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


def device_name(given: str) -> str:
    """Parse the name of an available device, such as cpu or cuda:1."""
    try:
        devices.check_there(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return given


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option for the device. `reproduce.running.devices.take` makes it the current one."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=device_name, default=default, help="device (default: cuda if available)")


def add_precision(parser: argparse.ArgumentParser, *others: str) -> None:
    """Add the option for the precision: those of cells trained without autocast, and the `others`."""
    choices = ("float32", "tf32", *others)
    parser.add_argument(
        "--precision", choices=choices, default="float32", help="precision as in cells; tf32 requires a CUDA device"
    )


def as_trained(
    parser: argparse.ArgumentParser, options: argparse.Namespace, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """Use the deterministic kernels that cells of this precision are trained with, within the returned context.

    PyTorch's defaults differ from training: convolutions use TF32 and the fastest algorithm. If the device does not
    support the precision, the command ends with an error.
    """
    if options.precision == "tf32" and device.type != "cuda":
        parser.error(f"--precision tf32 requires a CUDA device, but --device is {device}")
    return deterministic(device, tf32=options.precision == "tf32")


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Add the option for the measured methods."""
    parser.add_argument(
        "--methods",
        type=paper_method,
        nargs="+",
        default=list(methods.PAPER),
        help="methods to measure (default: the paper's six)",
    )


def add_networks(parser: argparse.ArgumentParser) -> None:
    """Add the options for the networks that several processes train and for their micro-batches."""
    parser.add_argument("--networks", type=network_name, nargs="+", default=["chain10", "revnet18"], help=NETWORKS)
    parser.add_argument("--width", type=count, default=32, help="channels of the first stage (default 32)")
    parser.add_argument("--batch", type=count, default=16, help="images per micro-batch (default 16)")
    parser.add_argument("--size", type=count, default=32, help="side of an image in pixels (default 32)")


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Add the option `--quick`, which `parse_quick` applies."""
    parser.add_argument(
        "--quick", action="store_true", help="override other options by tiny settings, to test that it runs"
    )


def parse_quick(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line. With `--quick`, tiny settings replace the given values of options that the parser has."""
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update({name: value for name, value in QUICK.items() if name in vars(options)})
    return options


def network(name: str, width: int) -> list[Stage]:
    """Build a network by name, for CIFAR's ten classes.

    Args:
        name: Name of the network, for example revnet18.
        width: Channels of its first blocks.

    Returns:
        The stages of the network.

    Raises:
        ValueError: No network has this name.

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
