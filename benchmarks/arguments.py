"""Define argparse types and options of the benchmarks: methods, networks and numbers.

Unknown values are refused before anything is measured, with the expected values.
"""

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from petra_core import Stage, methods, models
from petra_core.methods import Method
from reproduce.running import devices
from reproduce.running.execution import deterministic

T = TypeVar("T")

CLASSES = 10
#: Settings of `--quick`.
QUICK = {"networks": ["chain3"], "width": 2, "batch": 2, "size": 8, "turns": 2, "rounds": 2, "seconds": 0.01}
DEPTHS = (18, 34, 50)
NETWORKS = "revnet18/34/50, resnet18/34/50 or chainN, such as chain12"


def reporting(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return an argparse type that reports the message of a ValueError."""

    def parsed(given: str) -> T:
        try:
            return parse(given)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def count(given: str, least: int = 1) -> int:
    """Parse a whole number of at least `least`."""
    if not given.isdecimal() or int(given) < least:
        raise argparse.ArgumentTypeError(f"got {given}, expected a whole number of at least {least}")
    return int(given)


whole_number = partial(count, least=0)


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


@reporting
def paper_method(given: str) -> Method:
    """Parse the name of a method of the paper, in any spelling that `petra_core.methods.by_name` accepts.

    PaReprop computes in two threads, of which the profiler follows one, and has a separate benchmark. PipeDream-2BW
    needs a k that depends on the number of stages.
    """
    named = methods.by_name(given)
    if named not in methods.PAPER:
        raise ValueError(f"{named} is not measured here: expected one of {', '.join(map(str, methods.PAPER))}")
    return named


@reporting
def network_name(given: str) -> str:
    """Parse the name of a network that `network` can build."""
    _family_and_depth(given)
    return given


@reporting
def device_name(given: str) -> str:
    """Parse the name of an available device, such as cpu or cuda:1."""
    devices.check_there(given)
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


def add_size(parser: argparse.ArgumentParser, width: int, batch: int, size: int) -> None:
    """Add the options for the width of a network and for its micro-batches, with these defaults."""
    for option, default, what in (
        ("--width", width, "channels of the first stage"),
        ("--batch", batch, "images per micro-batch"),
        ("--size", size, "side of an image in pixels"),
    ):
        parser.add_argument(option, type=count, default=default, help=f"{what} (default {default})")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of CPU threads."""
    parser.add_argument("--threads", type=count, default=torch.get_num_threads(), help="CPU threads (default torch's)")


def add_networks(parser: argparse.ArgumentParser) -> None:
    """Add the options for the networks that several processes train and for their micro-batches."""
    parser.add_argument("--networks", type=network_name, nargs="+", default=["chain10", "revnet18"], help=NETWORKS)
    add_size(parser, width=32, batch=16, size=32)


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Add the option `--quick`, which `parse_quick` applies."""
    parser.add_argument(
        "--quick", action="store_true", help="override other options by tiny settings, to test that it runs"
    )


def parse_quick(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, **settings: Any
) -> argparse.Namespace:
    """Parse a command line. With `--quick`, `QUICK` and `settings` replace the values of the parser's options."""
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update({name: v for name, v in {**QUICK, **settings}.items() if name in vars(options)})
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
