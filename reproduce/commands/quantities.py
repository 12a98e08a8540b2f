"""Quantities as people write them: 8GB, 10Gbit/s, 50us. Each function is the type of an option."""

import re
from collections.abc import Mapping

import click

__all__ = ["bandwidth", "memory", "time"]


def memory(text: str) -> float:
    """Bytes. Raises: click.BadParameter: this is no amount of memory."""
    return _read(text, "memory", "8GB", {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20})


def bandwidth(text: str) -> float:
    """Bytes a second. Raises: click.BadParameter: this is no bandwidth."""
    return _read(text, "bandwidth", "10Gbit/s", {"Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8, "GB/s": 1e9, "MB/s": 1e6})


def time(text: str) -> float:
    """Seconds. Raises: click.BadParameter: this is no time."""
    return _read(text, "time", "50us", {"us": 1e-6, "ms": 1e-3, "s": 1.0})


def _read(text: str, what: str, example: str, units: Mapping[str, float]) -> float:
    """A number above 0 and its unit, in whatever case."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z/]+)", text.strip(), re.IGNORECASE)
    factor = {unit.lower(): factor for unit, factor in units.items()}.get(match[2].lower()) if match else None
    if match is None or factor is None or not float(match[1]) > 0:
        raise click.BadParameter(f"{text!r} is no {what}: a number and {', '.join(units)}, such as {example}")
    return float(match[1]) * factor
