"""Checks of numbers that users pass in, with messages that name the argument, its value and what is allowed.

This module is internal: it exports nothing to users.
"""

import math


def check_int(name: str, value: object, minimum: int) -> int:
    """Return `value` if it is an int of at least `minimum`.

    Raises:
        TypeError: it is not an int.
        ValueError: it is too small.

    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return value


def check_number(name: str, value: object, below: float = math.inf) -> float:
    """Return `value` as a float if it is a number with 0 <= value < below.

    Raises:
        TypeError: it is not an int or a float.
        ValueError: it is out of range, infinite or not a number.

    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= value < below:
        allowed = "at least 0" + (" and finite" if below == math.inf else f" and below {below:g}")
        raise ValueError(f"{name} must be {allowed}, got {value}")
    return float(value)
