"""Quantities as people write them: 8GB, 10Gbit/s, 50us.

This module exports BANDWIDTH, MEMORY, TIME, Quantity.
"""

import math
import re
from collections.abc import Mapping

import click

__all__ = ["BANDWIDTH", "MEMORY", "TIME", "Quantity"]


class Quantity(click.ParamType):
    """A number and its unit, as an option's type; the value is in the base unit.

    Args:
        name: what it is, as the help calls it.
        units: of each unit how many base units it has.

    """

    def __init__(self, name: str, units: Mapping[str, float]) -> None:
        self.name = name
        self._units = units

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it. Raises: click.BadParameter: it is not of this form, or not above 0."""
        if isinstance(value, float | int):
            return float(value)
        match = re.fullmatch(r"([0-9.eE+-]+)\s*(\D+?)", str(value).strip())
        by_lower = {unit.lower(): factor for unit, factor in self._units.items()}
        try:
            number = float(match[1]) if match else math.nan
        except ValueError:
            number = math.nan
        if match is None or match[2].lower() not in by_lower or not 0 < number < math.inf:
            self.fail(f"{value!r} is no {self.name}: a number and {', '.join(self._units)}, such as {self.example}")
        return number * by_lower[match[2].lower()]

    @property
    def example(self) -> str:
        """How one is written."""
        return f"8{list(self._units)[-1]}"


MEMORY = Quantity("memory", {"MB": 1e6, "MiB": 2**20, "GiB": 2**30, "GB": 1e9})  # bytes
BANDWIDTH = Quantity("bandwidth", {"MB/s": 1e6, "GB/s": 1e9, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8})  # bytes a second
TIME = Quantity("time", {"s": 1.0, "ms": 1e-3, "us": 1e-6})  # seconds
